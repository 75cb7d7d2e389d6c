"""Building: programs of builders that may not return."""

import itertools
import subprocess
import sys
import time

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, at, copy
from hpccoll.proof import building
from hpccoll.proof.building import programs_of
from hpccoll.proof.verifier import verify


def alone(rank, size):
    return Program(((copy(at(OUT, 0), at(IN, 0)),),))


def test_programs_of_all_ranks():
    made = schedule("allreduce", "ring", 4)
    assert programs_of(made) == [made.program(rank) for rank in range(4)]


@pytest.mark.parametrize("loop", [
    lambda: [None for _ in itertools.count() if False],
    lambda: next(each for each in itertools.count() if each < 0)])
def test_a_builder_that_never_returns(monkeypatch, loop):
    monkeypatch.setattr(building, "MOST_SECONDS", 0.2)

    def build(rank, size):
        return alone(rank, size) if rank == 0 else loop()

    start = time.monotonic()
    with pytest.raises(ProofError, match="builder.*0.2") as caught:
        verify(schedule("allreduce", build, 2))
    assert caught.value.rank == 1 and time.monotonic() - start < 30


@pytest.mark.slow
def test_a_builder_that_catches_everything_is_told_again(monkeypatch):
    monkeypatch.setattr(building, "MOST_SECONDS", 0.2)
    caught = []

    def build(rank, size):
        while len(caught) < 2:
            try:
                while True:
                    pass
            except BaseException as error:
                caught.append(error)
        return alone(rank, size)

    assert programs_of(schedule("allreduce", build, 1)) == [alone(0, 1)]
    assert len(caught) == 2


def test_the_process_is_as_before_afterwards():
    """An exception taken back by a null pointer hangs every profiler of CPython 3.11 for ever."""
    subprocess.run([sys.executable, "-c", """
import cProfile, itertools
from hpccoll.algorithms import schedule
from hpccoll.errors import ProofError
from hpccoll.proof import building
from hpccoll.proof.verifier import verify
building.MOST_SECONDS = 0.1
try:
    verify(schedule("allreduce", lambda rank, size: [0 for _ in itertools.count() if False], 1))
except ProofError:
    cProfile.run("sum(range(1000))")
"""], check=True, timeout=30, stdout=subprocess.DEVNULL)


def test_each_rank_has_its_own_time(monkeypatch):
    monkeypatch.setattr(building, "MOST_SECONDS", 0.5)

    def slow(rank, size):
        time.sleep(0.2)
        return alone(rank, size)

    assert len(programs_of(schedule("allreduce", slow, 4))) == 4


def test_nothing_is_left_behind(monkeypatch):
    import threading
    before = threading.active_count()
    programs_of(schedule("allreduce", "ring", 4))
    with pytest.raises(ProofError):
        programs_of(schedule("allreduce", lambda rank, size: 1 // 0, 4))
    assert threading.active_count() == before
