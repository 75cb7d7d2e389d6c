"""The ranks that transport rules run on: all of them in this process, or this one under MPI.

A rule is a generator function ``rule(me, ...)`` of one rank, which yields whenever it waits.
Loopback runs the rules of all ranks here, in turn; under ``mpiexec`` every process runs its own
over MPI messages and over shared memory, there with the compiled executor, too. A rule that is
not at its end in time is a failure, not a hang.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from contract.compiled_endpoint import CompiledEndpoint
from mpi4py import MPI

from hpccoll.runtime.execution import compiled
from hpccoll.runtime.ranks import channel_class
from hpccoll.testing.loopback_direct import Direct
from hpccoll.transport import Batch, MessageSpec
from hpccoll.transport.checked import CheckedEndpoint
from hpccoll.transport.loopback import Loopback
from hpccoll.transport.mpi import MpiEndpoint
from hpccoll.transport.shm.channels import SharedNode
from hpccoll.transport.shm.endpoint import SharedEndpoint
from support.gpu.device import installed
from support.gpu.mirrored import MirroredEndpoint
from support.gpu.streams import Devices

#: Seconds until a rule has failed.
PATIENCE = 40.0
#: Registered memory of a rank, in bytes.
REGISTERED = 2 << 20
#: Largest message that goes through a cell, in bytes.
CELL_BYTES = 16 << 10
#: Name of a payload: elements of 8 bytes, and whether they lie in registered memory.
PAYLOADS = {
    "empty": (0, False), "small": (3, False), "cell": (CELL_BYTES // 8, False),
    "large": (25_000, False), "registered": (4_000, True)}
#: Names of transports.
LOOPBACK, EAGER = "loopback", "loopback, read at the post"
DIRECT = "loopback, used in place"
SINGLE, PERSISTENT = "MPI", "MPI, persistent"
SHARED, NO_READV, TWO_NODES = "shared", "shared, without readv", "shared, two nodes"
COMPILED, PAUSED = "shared, compiled", "shared, compiled, with pauses"
DEVICE = "device memory, on the double"
CHECKED, CHECKED_MPI, CHECKED_SHARED = (f"{name}, with checksums" for name in (
    LOOPBACK, PERSISTENT, SHARED))
WITH_CHECKSUMS = (CHECKED, CHECKED_MPI, CHECKED_SHARED)
BUILT = (COMPILED, PAUSED) if compiled.BUILT else ()
ON_MPI = (SINGLE, PERSISTENT, SHARED, NO_READV, TWO_NODES, *BUILT, DEVICE, CHECKED_MPI,
          CHECKED_SHARED)
FLAVOURS = [LOOPBACK, EAGER, DIRECT, CHECKED,
            *(pytest.param(name, marks=pytest.mark.mpi(min_size=2)) for name in ON_MPI)]


class Rank:
    """One rank as a rule sees it."""

    def __init__(self, endpoint: Any, repeated: bool, region: numpy.ndarray | None):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size
        self.repeated, self.region = repeated, region
        self.forget()
        self.others = [rank for rank in range(self.size) if rank != self.rank]

    def forget(self) -> None:
        """Give all memory back."""
        # Whoever starts a batch keeps its memory alive; transports do not.
        self.kept: list[numpy.ndarray] = []
        self.used = 0

    def memory(self, payload: str, fill: int = -1) -> numpy.ndarray:
        """An array of the payload's size and kind, filled with a number."""
        count, registered = PAYLOADS[payload]
        if registered and self.region is not None:
            start, self.used = self.used, self.used + count * 8
            array = self.region[start:self.used].view(numpy.int64)
        else:
            array = numpy.empty(count, numpy.int64)
        array[:] = fill
        self.kept.append(array)
        return array

    def batch(self, *postings: MessageSpec, tag: int = 0, repeated: bool | None = None) -> Batch:
        """Prepare messages, as batches of the transport's kind or of the kind asked for."""
        return self.endpoint.batch(
            postings, tag, self.repeated if repeated is None else repeated)

    def start(self, *postings: MessageSpec, tag: int = 0) -> Batch:
        """Prepare messages and start them."""
        batch = self.batch(*postings, tag=tag)
        batch.start()
        return batch

    def finish(self, *batches: Batch) -> Iterator[None]:
        """Test batches in turn until all are done; free them."""
        waiting = list(batches)
        while waiting:
            waiting = [batch for batch in waiting if not batch.test()]
            yield
        for batch in batches:
            batch.free()


class Ranks(NamedTuple):
    """The ranks that run in this process."""

    flavour: str
    size: int
    here: list[Rank]

    def run(self, rule: Callable[..., Iterator[None]], *arguments: Any) -> None:
        """Run a rule on every rank to its end.

        Raises:
            Failed: it is not there in time.
        """
        running = {}
        for me in self.here:
            me.forget()
            running[me.rank] = rule(me, *arguments)
        turns, deadline = random.Random(self.size), time.monotonic() + PATIENCE
        while running:
            for rank in turns.sample(list(running), len(running)):
                if next(running[rank], running) is running:
                    del running[rank]
            if time.monotonic() > deadline:
                where = {rank: rule.gi_frame.f_lineno for rank, rule in running.items()}
                pytest.fail(f"{rule.__name__} waits in line {where} of {rule.__code__.co_filename}")
            os.sched_yield()


def send(peer: int, array: numpy.ndarray) -> MessageSpec:
    """A message to a rank."""
    return MessageSpec(True, peer, array)


def recv(peer: int, array: numpy.ndarray, *uses: tuple) -> MessageSpec:
    """A message from a rank, and what to do with it."""
    return MessageSpec(False, peer, array, uses)


@contextmanager
def world(flavour: str, session: pytest.Session) -> Iterator[Ranks]:
    """Make the ranks of one transport."""
    if flavour in (LOOPBACK, EAGER, DIRECT, CHECKED):
        if MPI.COMM_WORLD.Get_size() > 1:
            pytest.skip("loopback has all its ranks in one process")
        loopback = (Direct if flavour == DIRECT else Loopback)(
            4 if flavour == LOOPBACK else 3, flavour == EAGER)
        ends = [loopback.endpoint(rank) for rank in range(loopback.size)]
        if flavour == CHECKED:
            ends = [CheckedEndpoint(end) for end in ends]
        yield Ranks(flavour, loopback.size, [Rank(end, False, None) for end in ends])
        return
    with on_mpi(flavour, session) if flavour != DEVICE else on_devices(session) as ranks:
        yield ranks


@contextmanager
def on_mpi(flavour: str, session: pytest.Session) -> Iterator[Ranks]:
    """Make the ranks of a transport of this process and others."""
    comm = MPI.COMM_WORLD.Dup()
    endpoint, node, region = MpiEndpoint(comm), None, None
    if flavour not in (SINGLE, PERSISTENT, CHECKED_MPI):
        node = SharedNode(comm, comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank()),
                          CELL_BYTES, channel=channel_class())
        if flavour == NO_READV:
            node.readv = None
        if flavour == TWO_NODES:
            node.local = {rank: index for rank, index in node.local.items()
                          if rank % 2 == endpoint.rank % 2}
        endpoint = SharedEndpoint(node, endpoint)
        region = node.allocate(REGISTERED).mine
    if flavour in WITH_CHECKSUMS:
        endpoint = CheckedEndpoint(endpoint)
    if flavour in BUILT:
        endpoint = CompiledEndpoint(endpoint, endpoint.rank if flavour == PAUSED else None)
    yield Ranks(flavour, endpoint.size, [
        Rank(endpoint, flavour in (PERSISTENT, CHECKED_MPI), region)])
    # Freeing is collective: after a failure, other ranks may never come here.
    if not session.testsfailed:
        if node is not None:
            node.free()
        comm.Free()


@contextmanager
def on_devices(session: pytest.Session) -> Iterator[Ranks]:
    """Make ranks whose messages lie in memory of a double's device; they share it in a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(MPI.COMM_WORLD.bcast(name))
        with installed(False, Devices(), folder) as cupy, on_mpi(SHARED, session) as ranks:
            me, = ranks.here
            endpoint = MirroredEndpoint(me.endpoint, cupy)
            yield Ranks(DEVICE, ranks.size, [Rank(endpoint, False, me.region)])
            if not session.testsfailed:
                endpoint.free()
        if not session.testsfailed:
            MPI.COMM_WORLD.Barrier()
