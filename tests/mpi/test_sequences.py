"""Calls in an order that nobody would think of: blocking, nonblocking and persistent ones, mixed.

All ranks draw calls, algorithms and communicators from one seed; in which order a rank waits for
what is under way, and how long it dawdles, it draws from a seed of its own.
"""

import random
import time
from contextlib import ExitStack

import pytest
from mpi.cases import cases
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError

#: Calls of a sequence; how many requests may be under way, and persistent ones exist, at once.
CALLS, MOST, LASTING = 80, 8, 6
COUNTS = 0, 1, 2, 5, 31, 100, 1023, 5000
OPERATORS = "sum", "max", "min"
#: The root alone knows the counts of some: what asks it for them does not serve nonblocking calls.
ROOTED = "gather", "scatter"


def algorithms(draw, size):
    """An algorithm for most of the collectives, of those that serve so many ranks."""
    return {collective: draw.choice([name for name in table if serves(collective, name, size)])
            for collective, table in ALGORITHMS.items()
            if collective not in ROOTED and draw.random() < 0.9}


def serves(collective, name, size):
    try:
        return bool(hpccoll.schedule(collective, name, size))
    except ValueError:
        return False


class Sequence:
    """Calls on one of several communicators after the other."""

    def __init__(self, comms, draw, own):
        self.comms, self.draw, self.own = comms, draw, own
        self.under_way, self.lasting = [], []

    def case(self, comm):
        """A call on exact inputs; sums of small integers and of halves would not be."""
        draw = self.draw
        return draw.choice(list(cases(
            comm.rank, comm.size, draw.choice(("f8", "f4", "i8", "i4")), draw.choice(COUNTS),
            draw.randrange(comm.size), draw.choice(OPERATORS))))

    def step(self):
        """One more call; some algorithms cannot serve blocks of different sizes."""
        try:
            self.call()
        except ArgumentError as error:
            assert "cannot run this" in str(error)

    def call(self):
        draw, kind = self.draw, self.draw.random()
        comm = draw.choice(self.comms)
        if self.own.random() < 0.05:
            time.sleep(0.002)
        if kind < 0.3:
            case = self.case(comm)
            for _ in range(draw.choice((1, 1, 4))):
                case.fill()
                getattr(comm, case.method)(*case.args)
                case.check()
        elif kind < 0.65 and len(self.under_way) < MOST:
            case = self.case(comm)
            case.fill()
            self.under_way.append(
                (case, getattr(comm, f"I{case.method.lower()}")(*case.args)))
        elif kind < 0.85:
            self.start(comm)
        else:
            self.wait()

    def start(self, comm):
        """Start a persistent call, a new one or one that may be under way."""
        if len(self.lasting) < LASTING:
            case = self.case(comm)
            self.lasting.append(
                [case, getattr(comm, f"{case.method}_init")(*case.args), False])
        chosen = self.draw.choice(self.lasting)
        self.end(chosen)
        chosen[0].fill()
        chosen[1].Start()
        chosen[2] = True

    def end(self, chosen):
        case, request, active = chosen
        if active:
            request.Wait()
            case.check()
            chosen[2] = False

    def wait(self):
        """Wait for all that is under way, on every rank in another order."""
        waiting, self.under_way = self.under_way, []
        self.own.shuffle(waiting)
        if self.draw.random() < 0.5:
            MPI.Request.Waitall([request for _, request in waiting])
        else:
            left = list(waiting)
            while left:
                left = [pair for pair in left if not pair[1].Test()]
        for case, _ in waiting:
            case.check()

    def finish(self):
        self.wait()
        for chosen in self.lasting:
            self.end(chosen)
            chosen[1].Free()


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(4))
def test_calls_in_any_order(world, seed):
    draw, own = random.Random(seed), random.Random(f"{seed} {world.rank}")
    comms = [world, world.Dup(), world.Split(0, -world.rank)]
    with ExitStack() as preferences:
        for comm in comms:
            preferences.enter_context(comm.using(
                **algorithms(draw, world.size), segment_bytes=draw.choice((0, 0, 64, 4096))))
        sequence = Sequence(comms, draw, own)
        for _ in range(CALLS):
            sequence.step()
        sequence.finish()
    for comm in comms[1:]:
        comm.Free()
