"""Random collectives on device arrays: ranks in one process, with work on streams before and after.

``PYTHONPATH=.:tests python -m support.gpu.device_world CALLS`` makes so many, and prints what each
kind came to.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from types import SimpleNamespace
from unittest.mock import patch

import numpy
from mpi4py import MPI

from hpccoll.calls import resolve
from hpccoll.config import Config
from hpccoll.cuda import windows
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.topology import Topology
from hpccoll.machine.limits import DEDICATED
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.planning import planner
from hpccoll.runtime.planning.choice import Choice
from hpccoll.testing.exact import wrong
from hpccoll.testing.world import Problem, interleave
from hpccoll.transport.loopback import Loopback
from support.gpu.device import Wire, installed
from support.gpu.streams import Devices
from support.no_guard import NoGuard


def uneven(number):
    """Elements of so many blocks: few, unlike, and none."""
    return [(3 * block + 1) % 5 for block in range(number)]


def alltoallv(size, rank, source, sink):
    """A block of its own size for each pair."""
    counts = uneven(size * size)
    return resolve.alltoallv(size, rank, [source, counts[rank * size:rank * size + size]],
                             [sink, counts[rank::size]])


#: Gatherv and Scatterv are not here: their counts travel in messages of MPI's, see tests/mpi.
#: Collective -> algorithm, and how a rank calls it: (size, rank, send, recv) -> a resolved call.
CALLS = {
    "bcast": ("binomial", lambda p, r, s, x: resolve.bcast(p, r, x, p // 2)),
    "reduce": ("binomial", lambda p, r, s, x: resolve.reduce(p, r, s, x, MPI.SUM, p // 2)),
    "allreduce": ("rabenseifner", lambda p, r, s, x: resolve.allreduce(p, r, s, x, MPI.SUM)),
    "scan": ("recursive_doubling", lambda p, r, s, x: resolve.scan(p, r, s, x, MPI.SUM)),
    "exscan": ("census", lambda p, r, s, x: resolve.exscan(p, r, s, x, MPI.SUM)),
    "reduce_scatter": ("pat",
                       lambda p, r, s, x: resolve.reduce_scatter_block(p, r, s, x, MPI.SUM)),
    "allgather": ("bruck", lambda p, r, s, x: resolve.allgather(p, r, s, x)),
    "gather": ("binomial", lambda p, r, s, x: resolve.gather(p, r, s, x, p // 2)),
    "scatter": ("binomial", lambda p, r, s, x: resolve.scatter(p, r, s, x, p // 2)),
    "alltoall": ("bruck", lambda p, r, s, x: resolve.alltoall(p, r, s, x)),
    "reduce_scatter uneven": ("ring", lambda p, r, s, x: resolve.reduce_scatter(
        p, r, s, x, uneven(p), MPI.SUM)),
    "allgather uneven": ("ring", lambda p, r, s, x: resolve.allgatherv(p, r, s, [x, uneven(p)])),
    "alltoall uneven": ("pairwise", alltoallv),
    "allreduce in place": ("recursive_doubling",
                           lambda p, r, s, x: resolve.allreduce(p, r, MPI.IN_PLACE, x, MPI.SUM)),
    "alltoall in place": ("pairwise", lambda p, r, s, x: resolve.alltoall(p, r, MPI.IN_PLACE, x)),
}
DTYPES = ["u1", "i4", "i8", "f2", "f4", "f8", "c8"]
STREAMS = ["null", "blocking", "non_blocking"]


def delay(cupy):
    """Let what is queued after this be late; a stand-in's work is as late as it may be."""


class RandomCall:
    """A call: what is called, by how many ranks, on which streams and devices."""

    def __init__(self, seed, **fixed):
        draw = random.Random(seed)
        self.seed, self.devices = seed, draw.randint(1, 3)
        self.machine = Devices(self.devices, draw.choice([None, seed]))
        self.name, self.size = draw.choice(list(CALLS)), draw.randint(1, 8)
        self.dtype, self.direct = draw.choice(DTYPES), draw.random() < 0.5
        self.elsewhere, self.segment_bytes = draw.random() < 0.5, draw.choice([8, 1 << 20])
        self.stream, self.away = draw.choice(STREAMS), draw.random() < 0.3
        self.fair, self.ahead = draw.choice([1, 20, windows.FAIR]), draw.choice([0, 64 << 20])
        vars(self).update(fixed)

    def problem(self):
        """Inputs and expected results."""
        blocks = {"vector": 1, "blocks": self.size, "pairs": self.size ** 2}
        collective = COLLECTIVES[self.name.split()[0]]
        number = blocks[collective.payload]
        sizes = uneven(number) if "uneven" in self.name else [
            12 if collective.payload == "vector" else 3] * number
        return Problem(collective, self.size, sizes,
                       self.size // 2 if collective.rooted else 0, "sum", self.dtype)


def context(world, rank, size):
    """What the engine needs of a communicator."""
    wire = Wire(world.endpoint(rank))
    return SimpleNamespace(
        rank=rank, size=size, endpoint=wire, remote=wire, plans=BoundedDict(9), config=Config(),
        limits=DEDICATED, scratch_bytes=0, topology=Topology.parse(str(size)),
        scratch=lambda nbytes: numpy.empty(nbytes, "u1"), guard=NoGuard(), phases=None)


class DeviceRank:
    """One rank's device, stream and buffers."""

    def __init__(self, cupy, drawn, rank):
        self.cupy, self.rank, self.device = cupy, rank, cupy.cuda.Device(rank % drawn.devices)
        with self.device:
            self.stream = (cupy.cuda.get_current_stream() if drawn.stream == "null" else
                           cupy.cuda.Stream(non_blocking=drawn.stream == "non_blocking"))
            self.other = cupy.cuda.Stream(non_blocking=True)

    def prepare(self, drawn, posed, world):
        """Queue what makes the input on another stream, and make the call."""
        given, wanted = (numpy.concatenate(blocks) if blocks else None
                         for blocks in (posed.input_blocks(self.rank),
                                        posed.expected_blocks(self.rank)))
        self.wanted = wanted
        algorithm, call = CALLS[drawn.name]
        with self.device:
            with self.other:
                delay(self.cupy)
                source = None
                if given is not None:
                    source = self.cupy.empty(given.size, drawn.dtype)
                    source[...] = self.cupy.asarray(given)
                size = 12 if wanted is None else wanted.size
                self.sink = (source if drawn.name == "bcast" and source is not None
                             else self.cupy.empty(size, drawn.dtype))
                if self.sink is not source:  # what comes before the call must not come after it
                    self.sink[...] = source if "in place" in drawn.name else self.cupy.asarray(
                        numpy.full(size, 55, drawn.dtype))
                self.stream.wait_event(self.other.record())
            self.source = source
            # The current device is a thread's; arrays of another one are no mistake.
            here = (self.device.id + drawn.away) % drawn.devices
            with self.stream, self.cupy.cuda.Device(here):
                self.made = call(drawn.size, self.rank, source, self.sink)
                mine = context(world, self.rank, drawn.size)
                plan = planner.plan_for(
                    mine, self.made, Choice(algorithm, segment_bytes=drawn.segment_bytes))
                return planner.prepare(mine, self.made, plan)

    def store(self):
        """What completes the call, in whatever thread sees that it is complete."""
        if self.made.sink is not None and self.made.sink.store is not None:
            self.made.sink.store()
        self.made = None

    def use(self, drawn):
        """Queue, behind the call, what reads the result, and what destroys it and the input."""
        # Whoever has made no stream current may read anywhere.
        with self.device, self.other if drawn.stream == "null" else self.stream:
            self.read = self.sink.copy()
            self.sink[...] = 77
            if self.source is not None:
                self.source[...] = 78

    def is_wrong(self):
        """Tell whether what was read is not what was wanted."""
        return self.wanted is not None and bool(wrong(self.cupy.asnumpy(self.read), self.wanted))


def make(drawn, calls=1):
    """Make a call; return what is wrong. ``calls`` of them share a machine."""
    found = []
    with (installed(drawn.direct, drawn.machine) as cupy,
          patch.multiple(windows, FAIR=drawn.fair, AHEAD_BYTES=drawn.ahead)):
        for _ in range(calls):
            posed, world = drawn.problem(), Loopback(drawn.size)
            places = [DeviceRank(cupy, drawn, rank) for rank in range(drawn.size)]
            executions = [place.prepare(drawn, posed, world) for place in places]

            def complete(executions=executions, places=places):
                try:
                    interleave(executions, drawn.seed)
                    for place in places:
                        place.store()
                except Exception as error:
                    found.append(f"{type(error).__name__}: {error}")

            if drawn.elsewhere:
                thread = threading.Thread(target=complete)
                thread.start()
                thread.join()
            else:
                complete()
            if found:
                break
            executions.clear()  # whoever keeps memory for a copy has to do it himself
            for place in places:
                place.use(drawn)
            for place in places:
                # asnumpy would wait for the null stream and, with it, for blocking ones.
                (place.other if drawn.stream == "null" else place.stream).synchronize()
            found += [f"rank {place.rank}: result" for place in places if place.is_wrong()]
    return found


def main(calls):
    """Make random calls and say what they came to."""
    right = Counter()
    for seed in range(calls):
        drawn = RandomCall(seed)
        found = make(drawn)
        if found:
            raise SystemExit(f"seed {seed}: {drawn.name} of {drawn.size} ranks: {found}")
        right["direct" if drawn.direct else "staged", drawn.name] += 1
    for (way, name), number in sorted(right.items()):
        print(f"{way:7} {name:18} {number:6} exact")


if __name__ == "__main__":
    main(int(sys.argv[1]))
