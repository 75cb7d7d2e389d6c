"""Messages between ranks of one node, through memory that both can reach.

Every ordered pair of ranks has a channel (:mod:`hpccoll.transport.shm.channels`). A message lies

* in a cell of its channel: copied there by the sender, which goes on at once (eager);
* in registered memory (``comm.empty``), read in place by the receiver (rendezvous);
* in the sender's own memory, read by ``process_vm_readv``: one copy (rendezvous);
* in an MPI message, where none of the others is possible.

Small messages always use cells. For larger ones it depends on where the two ranks run: writing
lines that another core has in its cache goes at 25 GB/s when they share a cache and at 2 GB/s when
they do not. So a sender times its copies, and uses cells as long as they are fast.

The receiver reads, reduces straight from where the message lies when the posting says how
(``uses``), and then marks the message as taken. A sender whose memory is read may touch it again
when the message was taken, exactly as with a synchronous send.

Data is written before its word and read before ``taken`` is; how that order is kept is decision
0006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from hpccoll.transport import NOTHING, Batch, Endpoint, Posting
from hpccoll.transport.shm.channels import SharedNode
from hpccoll.transport.shm.eager import EagerBatch, fits_places
from hpccoll.transport.shm.rendezvous import RendezvousBatch
from hpccoll.transport.stamps import split

#: Up to so many bytes, copying registered memory into a cell is cheaper than reading it in place.
TINY = 64 << 10


class SharedEndpoint:
    """One rank's side of the channels to the ranks of its node.

    Args:
        node: the ranks that share memory.
        remote: endpoint for messages to other nodes, and for what shared memory cannot carry.
    """

    #: Channels have one reader each.
    offers = NOTHING

    def __init__(self, node: SharedNode, remote: Endpoint):
        self.node, self.remote = node, remote
        self.rank, self.size = remote.rank, remote.size
        #: Raises where a rank has said that it has given up.
        self.heard: Callable[[], None] | None = None

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Tell whether messages from these ranks are read in place."""
        return split(tag)[0] in self.node.tags and all(peer in self.node.local for peer in peers)

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        near, plain = [p for p in postings if p.peer in self.node.local], split(tag)[0]
        if not near or plain not in self.node.tags:
            return self.remote.batch(postings, tag, repeated)
        eager = fits_places(near) and all(
            isinstance(p.array, numpy.ndarray) and p.array.nbytes <= self.node.eager_limit(plain)
            and (not p.sends or self.uses_cell(p, plain)) for p in near)
        batch: Batch = (EagerBatch(self, near, tag) if eager
                        else RendezvousBatch(self, near, tag))
        if len(near) == len(postings):
            return batch
        far = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(far, tag, repeated))

    def uses_cell(self, posting: Posting, tag: int) -> bool:
        """Tell whether a message to send fits an eager cell and may be faster that way."""
        array, node = posting.array, self.node
        return ((array.nbytes <= TINY or node.locate(array) is None)
                and bool(node.outgoing(posting.peer, tag).cells_for(array.nbytes)))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, near: Batch, far: Batch):
        self.near, self.far = near, far

    def start(self) -> None:
        self.far.start()
        self.near.start()
        self.arrived = False

    def test(self, tries: int = 1) -> bool:
        self.arrived = self.arrived or self.far.test()
        return self.near.test() and self.arrived

    def free(self) -> None:
        self.far.free()
        self.near.free()
