"""Shared: messages between ranks of one node, through memory both can reach.

Every ordered pair of ranks has a channel (:mod:`hpccoll.transport.shm.channels`). A message lies

* in a slot of its channel: copied there by the sender, which goes on at once;
* in registered memory (``comm.empty``), read in place by the receiver;
* in the sender's own memory, read by ``process_vm_readv`` (one copy);
* in an MPI message, where none of the others is possible.

Small messages always use slots. For larger ones it depends on where two ranks run: writing lines
that another core has in its cache goes at 25 GB/s when they share a cache and at 2 GB/s when they
do not. So a sender times its copies, and stays with slots while they are fast.

The receiver reads, reduces straight from where the message lies when the posting says how
(``uses``), and then marks the message as taken. A sender whose memory is read may touch it again
when the message was taken, exactly as with a synchronous send.

Data is written before its word and read before ``taken`` is; how that order is kept is decision
0006.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.ir.schedule import SEND
from hpccoll.transport import Posting
from hpccoll.transport.shm.channels import SharedNode
from hpccoll.transport.shm.eager import Exchange, SlotBatch, in_places, small
from hpccoll.transport.shm.rendezvous import SharedBatch

#: Registered messages of at most so many bytes go through slots all the same: cheaper to copy.
TINY = 64 << 10


class SharedEndpoint:
    """One rank's side of the channels to the ranks of its node."""

    def __init__(self, node: SharedNode, remote: Any):
        self.node, self.remote = node, remote
        self.rank, self.size = remote.rank, remote.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Tell whether messages from these ranks are read in place."""
        return tag in self.node.tags and all(peer in self.node.local for peer in peers)

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Any:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        near = [p for p in postings if p.peer in self.node.local]
        if not near or tag not in self.node.tags:
            return self.remote.batch(postings, tag, repeated)
        fit = in_places(near) and all(
            isinstance(p.array, numpy.ndarray) and p.array.nbytes <= self.node.sure(tag)
            and (p.kind != SEND or self.takes_slot(p, tag)) for p in near)
        batch = (small if fit else SharedBatch)(self, near, tag)
        if len(near) == len(postings):
            return batch
        far = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(far, tag, repeated))

    def takes_slot(self, posting: Posting, tag: int) -> bool:
        """Tell whether a message to be sent can go through a slot, and had better."""
        array, node = posting.array, self.node
        slots = node.outgoing(posting.peer, tag).slots
        return (bool(slots) and array.nbytes <= slots[0].nbytes
                and (array.nbytes <= TINY or node.locate(array) is None))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, near: SlotBatch | Exchange | SharedBatch, far: Any):
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
