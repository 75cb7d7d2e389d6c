"""Messages in device memory for rules that look at host arrays; the device is the double.

    MirroredEndpoint   puts the arrays of each batch into registered device memory, and back
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.cuda.ipc import IpcQueue, PeerMemory
from hpccoll.cuda.stream_ordered import Queue
from hpccoll.cuda.transport import DeviceEndpoint
from hpccoll.transport import MessageSpec
from hpccoll.transport.shm.endpoint import SharedEndpoint
from support.gpu import device

#: Registered bytes of a rank, and the boundary on which each array begins.
REGISTERED, ALIGNED = 64 << 20, 64
#: Tests from when the messages are complete until the results are read: a sender that overwrites
#: its memory without waiting for the reader does so meanwhile.
LATE = 20


class MirroredEndpoint:
    """The transport of device memory under rules that write and read host arrays."""

    def __init__(self, channels: SharedEndpoint, cupy: Any):
        self.channels, self.stream = channels, cupy.cuda.Stream(non_blocking=True)
        self.rank, self.size, self.offers = channels.rank, channels.size, channels.offers
        self.peers = PeerMemory(channels.node.comm)
        memory = self.peers.connect() or self.peers.register(REGISTERED)
        if isinstance(memory, str):
            raise OSError(memory)
        self.region = channels.node.register(memory, self.peers.copy_out).mine
        self.inner = DeviceEndpoint(channels, IpcQueue(self.peers, Queue(
            self.peers.device, self.stream)))
        self.used = 0

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Messages are used where they lie."""
        return self.inner.direct(peers, tag)

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Any:
        """Prepare messages, in device memory where the tag is one of blocking calls."""
        if not self.direct((), tag):
            return self.channels.batch(postings, tag, repeated)
        return MirroredBatch(self, postings, tag)

    def place(self, host: numpy.ndarray) -> Any:
        """Device memory for the values of an array."""
        start = -(-self.used // ALIGNED) * ALIGNED
        if start + host.nbytes > self.region.nbytes:
            start = 0  # the first batches of a test are over by then
        self.used = start + host.nbytes
        return self.region[start:self.used].view(host.dtype)

    def free(self) -> None:
        """Close what peers own; collective over the node."""
        self.stream.synchronize()
        self.peers.free(True, lambda: False)


class MirroredBatch:
    """A batch of messages, whose arrays have a counterpart on the device."""

    def __init__(self, endpoint: MirroredEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.endpoint, self.done, self.left = endpoint, True, 0
        #: By identity, a host array and its counterpart.
        self.pairs: dict[int, tuple[numpy.ndarray, Any]] = {}
        self.results = [one.array for one in postings if not one.sends]
        self.sent = [one.array for one in postings if one.sends]
        self.inner = endpoint.inner.batch([
            one._replace(array=self.there(one.array), uses=tuple(map(self.use, one.uses)))
            for one in postings], tag, False)

    def there(self, host: Any) -> Any:
        """The counterpart of an array; other operands are themselves."""
        if not isinstance(host, numpy.ndarray):
            return host
        if id(host) not in self.pairs:
            self.pairs[id(host)] = host, self.endpoint.place(host)
        return self.pairs[id(host)][1]

    def use(self, use: Any) -> Any:
        """What uses a message, as work that the device does when its turn comes."""
        function, operands, *rest = use
        self.results += [one for one in operands if isinstance(one, numpy.ndarray)]

        def queued(*arrays: Any) -> None:
            device.queue(lambda: function(*(one.raw for one in arrays)), *arrays)

        return (queued, tuple(map(self.there, operands)), *rest)

    def start(self) -> None:
        """Copy all values to the device, and start the messages."""
        for host, there in self.pairs.values():
            there.set(host, stream=self.endpoint.stream)
        self.done, self.left = False, LATE if self.results else 0
        self.inner.start()

    def test(self) -> bool:
        """Tell whether the messages are complete; the first time, copy the results back."""
        if self.done or not self.inner.test():
            return self.done
        self.left -= 1
        if self.left <= 0:
            self.done = True
            for host in self.results:
                self.there(host).get(stream=self.endpoint.stream, out=host)
            for host in self.sent:
                other = numpy.invert(host.view("u1")).view(host.dtype)
                self.there(host).set(other, stream=self.endpoint.stream)
            self.endpoint.stream.synchronize()
        return self.done

    def free(self) -> None:
        """Give the messages back."""
        self.inner.free()
