"""Discovery of the switches, nodes and processors of the ranks; the same result on all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from glob import glob
from typing import NamedTuple

from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.errors.agreement import first_difference, hash_of_text
from hpccoll.ir.topology import Topology
from hpccoll.machine.groups import world_ranks
from hpccoll.machine.launcher import local_size
from hpccoll.machine.levels import GPU, NODE, SWITCH, layout, position
from hpccoll.machine.processes import Process, this_process
from hpccoll.machine.slurm import parse_network
from hpccoll.transport.private_comm import PrivateComm


class Surroundings(NamedTuple):
    """The machine around a communicator's ranks; the same on every rank.

    Attributes:
        topology: groups of ranks, nested by the requested levels.
        oversubscribed: some node has more ranks than processors. The processors of a node are the
            union of its ranks' affinity masks, so ranks with a core each are not oversubscribed.
        fabric: some node has an adapter of a fabric, which moves memory without the kernel.
        compiled: every rank has the compiled executor.
        devices: every rank has started to use device arrays.
    """

    topology: Topology
    oversubscribed: bool
    fabric: bool = False
    compiled: bool = False
    devices: bool = False


class Place(NamedTuple):
    """Properties of the job that rules depend on; the same on every rank.

    Attributes:
        one_node: all ranks share memory that hpccoll can use.
        oversubscribed: ranks share processors.
        in_order: ranks are numbered node by node.
        fabric: some node has an adapter for more than TCP.
        compiled: every rank has the compiled executor.
        shared_cache: two ranks, with a processor each, share a cache.
    """

    one_node: bool
    oversubscribed: bool
    in_order: bool = True
    fabric: bool = False
    compiled: bool = False
    shared_cache: bool = False


#: Linux's lists of adapters: InfiniBand, RoCE, Omni-Path and EFA; Slingshot.
FABRICS = ("/sys/class/infiniband/*", "/sys/class/cxi/*")


def exchange_processes(comm: PrivateComm, settings: dict[str, str]) -> list[Process]:
    """Compare the settings of all ranks; return their processes by rank. Collective.

    Call it before any other exchange of the set-up: ranks with different settings would run
    different algorithms, or send set-up messages that other ranks do not expect. The error, on
    every rank, names the first variable that differs.
    """
    digest = hash_of_text(repr(settings), 8)
    # Values are longer than digests: ranks exchange values only if a digest differs.
    answers = comm.allgather((digest, tuple(this_process())))
    if any(other != digest for other, _ in answers):
        difference = first_difference(comm.allgather(list(settings.values())))
        if difference is not None:
            raise ArgumentError(list(settings)[difference.place], f"is {difference}",
                                "set the same value on all ranks")
    return [Process(*process) for _, process in answers]


def discover(comm: MPI.Intracomm, node: MPI.Intracomm, levels: Sequence[str] = (SWITCH, NODE),
             network: str = "", compiled: bool = False, devices: bool = False,
             gpu_island: Callable[[MPI.Intracomm], int] = lambda node: -1) -> Surroundings:
    """Collect the position of every rank once; collective over ``comm``.

    If ranks are not numbered node by node, the topology has its own order of ranks.

    Args:
        node: this rank's part of ``comm.Split_type(COMM_TYPE_SHARED)``; ``comm`` on one node.
        network: path of a file about switches; ``""`` for Slurm's variables.
        gpu_island: returns the number of this rank's NVLink group, collective over ``node``;
            called for the level of GPUs only.
    """
    mine, leads = sorted(os.sched_getaffinity(0)), node.Get_rank() == 0
    members = node.allgather((comm.Get_rank(), mine))
    processors = set().union(*(mask for _, mask in members))
    # Levels inside a node read /sys for every processor: only if they are requested.
    below, text, problem = not {SWITCH, NODE, GPU}.issuperset(levels), None, ""
    gpu = gpu_island(node) if GPU in levels else -1
    if network:
        text, problem = node.bcast(read_network(network) if leads else None)
    here = None
    if not problem:
        try:
            here = position(mine if below else (),
                            network=None if text is None else parse_network(text), gpu=gpu)
        except ArgumentError as error:
            problem = str(error)
    answers = comm.allgather((members[0][0], len(members) > len(processors), here, problem,
                              leads and has_fabric(), compiled, devices))
    nodes, oversubscribed, positions, problems, fabrics, executors, using = zip(*answers)
    if any(problems):
        raise ArgumentError("HPCCOLL_NETWORK", next(filter(None, problems)).removeprefix(
            "HPCCOLL_NETWORK: "))
    return Surroundings(layout(nodes, positions, levels).topology, any(oversubscribed),
                        any(fabrics), all(executors), all(using))


def on_one_node(comm: MPI.Intracomm) -> bool:
    """Return True if the launcher reports one node for all ranks; the same on all ranks."""
    # A communicator with spawned processes has ranks of another job.
    return (local_size() == MPI.COMM_WORLD.Get_size()
            and MPI.UNDEFINED not in world_ranks(comm))


def has_fabric() -> bool:
    """Return True if this node has an adapter of a fabric."""
    return any(map(glob, FABRICS))


def read_network(path: str) -> tuple[str, str]:
    """Read a file about switches; return its text, and its problem or an empty string."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"cannot read {path!r}: {error}"
