"""Ranks of a communicator: who they are, where they are, and what memory they share.

hpccoll sends all its messages on a private duplicate of the user's communicator, so that they never
mix with the user's.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from mpi4py import MPI

from hpccoll.config import COMPILED, Config, common_values
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place, discover, exchange_processes, on_one_node
from hpccoll.machine.groups import private_copy
from hpccoll.machine.limits import DEDICATED, OVERSUBSCRIBED, Limits
from hpccoll.runtime.execution.built import BUILT, executor
from hpccoll.transport.mpi import FIRST_TAG, Tags, tags_of_library
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.transport.shm.caches import share_a_cache
from hpccoll.transport.shm.channels import Channel, SharedNode

if BUILT:
    from hpccoll.runtime.execution import _executor

#: Tags 0-15 are for blocking collectives, the next two for a queue of nonblocking ones, and two
#: carry objects.
LANE_TAG, OBJECTS_TAG = 12, 14
#: Tag of the message that reports the failure of a rank.
ALARM_TAG = 11
#: Tags per nonblocking or persistent collective, allocated from FIRST_TAG on.
TAGS_PER_CALL = 8
#: Largest number of persistent collectives per communicator with channels in shared memory.
MOST_PERSISTENT = 64


def channel_class() -> type[Channel]:
    """Return the class of channels, whose counters the compiled executor shares."""
    if not BUILT:
        return Channel

    class CountedChannel(_executor.Counters, Channel):
        """Channel whose counters both executors read and write."""

    return CountedChannel


class Ranks:
    """Ranks of a communicator; the constructor is collective.

    Args:
        user: the communicator.
        config: the settings of its first use.
        topology: the layout of nodes and ranks; discovered if ``None``.

    Attributes:
        user, config: as above.
        comm, rank, size: the private duplicate.
        processes: the processes of all ranks.
        topology: nodes and ranks.
        place: the system description for tuning rules.
        limits: message sizes and spin counts, which depend on whether each rank has its own core.
        compiled: True if the compiled executor is in use.
        tags: the MPI tags of messages.
        persistent_tags: first tags of the persistent collectives.
        node: ranks that share memory with this one; ``None`` if shared memory is disabled.
    """

    def __init__(self, user: MPI.Intracomm, config: Config, topology: Topology | None):
        from hpccoll.cuda import NODE_ANSWERS, gpu_island, is_in_use
        self.user, self.config = MPI.Intracomm(user), config
        with ExitStack() as undo:  # a library has only some thousand communicators
            self.comm = private_copy(self.user)
            undo.callback(self.comm.Free)
            self.comm.Set_name(f"hpccoll private of {user.Get_name()}"[:MPI.MAX_OBJECT_NAME - 1])
            self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
            self.processes = exchange_processes(self.comm, common_values(config))
            single = on_one_node(self.comm)
            node_comm = self.comm
            if not single:
                node_comm = PrivateComm(
                    self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))
                undo.callback(node_comm.Free)
            self.compiled = executor(config) == COMPILED
            around = discover(self.comm, node_comm, config.levels, config.network, self.compiled,
                              is_in_use(), gpu_island)
            self.topology = topology or around.topology
            self.limits: Limits = OVERSUBSCRIBED if around.oversubscribed else DEDICATED
            if around.compiled and single:
                self.limits = self.limits.without_large_segments()
            if around.devices:
                self.limits = self.limits.on_devices("staged")
                NODE_ANSWERS.connect(node_comm)
            self.tags: Tags = tags_of_library()
            # Nonblocking calls cycle through one half of the tags; persistent ones use the other.
            turns = self.tags.turns // TAGS_PER_CALL // 2
            self.persistent_tags = range(FIRST_TAG, FIRST_TAG + 2 * turns * TAGS_PER_CALL,
                                         TAGS_PER_CALL)[turns:]
            self.node: SharedNode | None = None
            if config.shared_memory:
                self.node = SharedNode(
                    self.comm, node_comm, self.limits.cell_bytes,
                    (OBJECTS_TAG, LANE_TAG, *self.persistent_tags[:MOST_PERSISTENT]),
                    channel_class())
            one_node = self.node is not None and len(self.node.local) == self.size - 1
            self.place = Place(one_node, around.oversubscribed, self.topology.order is None,
                               around.fabric, around.compiled and config.shared_memory,
                               self.size == 2 and one_node and not around.oversubscribed
                               and share_a_cache(node_comm))
            if self.node is None and not single:
                node_comm.Free()
            undo.pop_all()

    def new_queue(self) -> Any:
        """Return a queue of nonblocking collectives with small messages, which share channels.

        ``None`` unless all ranks share memory and use the compiled executor.
        """
        has_channels = self.place.one_node and self.node and LANE_TAG in self.node.tags
        return _executor.RequestQueue() if has_channels and self.place.compiled else None

    def revoke(self) -> None:
        """Revoke the communicators, so that pending native calls of all ranks end; needs ULFM."""
        node_comm = [self.node.comm] if self.node is not None and self.node.owned else []
        for comm in (self.user, self.comm, *node_comm):
            comm.Revoke()

    def free(self, keep_duplicate: bool) -> None:
        """Release the shared memory, and the duplicate unless it has to be kept."""
        if self.node is not None:
            self.node.free()
        if not keep_duplicate:
            self.comm.Free()
