"""Messages between ranks of one node, through memory that both can reach.

Every ordered pair of ranks has a channel (:mod:`hpccoll.transport.shm.channels`). A message is

* in a cell of its channel: the sender copies it there and continues (eager);
* in registered memory (``comm.empty``), read in place by the receiver (rendezvous);
* in the private memory of the sender, read by ``process_vm_readv``: one copy (rendezvous);
* in an MPI message, if no other way is possible.

Here messages that fit a cell use it. The executor in C measures which way is faster: writing lines
that another core has in its cache reaches 25 GB/s with a shared cache and 2 GB/s without.

The receiver reads or reduces the message in place (``uses``), and marks it as consumed. Then the
sender may reuse its memory, as with a synchronous send.

The sender writes data before the word; the receiver reads it before it writes ``taken``. Decision
0007 describes the memory order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from hpccoll.transport import NOTHING, Batch, Endpoint, MessageSpec
from hpccoll.transport.call_hashes import split
from hpccoll.transport.shm.channels import SharedNode
from hpccoll.transport.shm.eager import EagerBatch, fits_places
from hpccoll.transport.shm.rendezvous import RendezvousBatch

#: Up to this size, copying registered memory into a cell is cheaper than reading it in place.
TINY = 64 << 10


class SharedEndpoint:
    """One rank's side of the channels to the ranks of its node.

    Args:
        node: the ranks that share memory.
        remote: endpoint for messages to other nodes, and for tags without channels.
    """

    #: A channel has one reader.
    offers = NOTHING

    def __init__(self, node: SharedNode, remote: Endpoint):
        self.node, self.remote = node, remote
        self.rank, self.size = remote.rank, remote.size
        #: Callback that raises if another rank has failed.
        self.on_alarm: Callable[[], None] | None = None

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return True if messages from these ranks are read in place."""
        return split(tag)[0] in self.node.tags and all(peer in self.node.local for peer in peers)

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        local, plain = [p for p in postings if p.peer in self.node.local], split(tag)[0]
        if not local or plain not in self.node.tags:
            return self.remote.batch(postings, tag, repeated)
        eager = fits_places(local) and all(
            isinstance(p.array, numpy.ndarray) and p.array.nbytes <= self.node.cell_limit(plain)
            and (not p.sends or self.uses_cell(p, plain)) for p in local)
        batch: Batch = (EagerBatch(self, local, tag) if eager
                        else RendezvousBatch(self, local, tag))
        if len(local) == len(postings):
            return batch
        remote = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(remote, tag, repeated))

    def uses_cell(self, posting: MessageSpec, tag: int) -> bool:
        """Return True if a message may use a cell: it fits, and reading is not cheaper."""
        array, node = posting.array, self.node
        return ((array.nbytes <= TINY or node.locate(array) is None)
                and bool(node.send_channel(posting.peer, tag).cells_for(array.nbytes)))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, local: Batch, remote: Batch):
        self.local, self.remote = local, remote

    def start(self) -> None:
        self.remote.start()
        self.local.start()
        self.arrived = False

    def test(self, tries: int = 1) -> bool:
        self.arrived = self.arrived or self.remote.test()
        return self.local.test() and self.arrived

    def free(self) -> None:
        self.remote.free()
        self.local.free()
