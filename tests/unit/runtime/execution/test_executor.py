"""Executions: the state machine, its patience, and whom it names when that is at its end."""

import sys
import threading
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.algorithms import schedule
from hpccoll.config import NO_TIMEOUT
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout
from hpccoll.errors.waits import RankStates
from hpccoll.ir.collectives import ALLREDUCE, BARRIER, IN, OUT
from hpccoll.machine import backoff
from hpccoll.runtime.execution import executor
from hpccoll.runtime.execution.executor import SPINS, Timeouts, drive, finish
from hpccoll.runtime.progress import waiting
from hpccoll.runtime.progress.waiting import WaitTimer
from hpccoll.testing.world import Problem, Seat, StallError, interleave
from hpccoll.transport.call_hashes import tag_with_hash
from hpccoll.transport.loopback import Loopback


class Clock:
    """A clock that goes on by some seconds whenever it is looked at."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.yields, self.sleeps = 0.0, seconds, 0, []
        clock = SimpleNamespace(monotonic=self.read, sleep=self.sleeps.append)
        for module in (backoff, waiting):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(backoff.os, "sched_yield", self.other)

    def read(self):
        self.now += self.seconds
        return self.now

    def other(self):
        self.yields += 1


def made(name="ring", size=3, count=7, segment=0, world=None, repeated=False):
    """The executions of an allreduce, on filled memory, and their seats."""
    plan = schedule("allreduce", name, size)
    world = world or Loopback(size)
    seats = [Seat(plan, Problem(ALLREDUCE, size, [count]), rank, segment=segment)
             for rank in range(size)]
    for seat in seats:
        seat.fill()
    return seats, [seat.execution(world.endpoint(seat.rank), repeated) for seat in seats]


def right(seats):
    return not [fault for seat in seats for fault in seat.faults()]


def test_an_execution_goes_as_far_as_it_can():
    seats, (one, two, three) = made()
    assert one.done and not one.tracks
    for execution in (one, two):
        execution.start()
        assert not execution.done and not execution.progress()
    three.start()
    while not (one.done and two.done and three.done):
        assert one.progress() | two.progress() | three.progress()
    assert right(seats)


def test_a_single_rank_is_done_at_once():
    seats, (only,) = made(size=1)
    only.start()
    assert only.done and right(seats) and only.pending_peers() == (0, ())


def test_who_is_waited_for():
    _, (one, two, _) = made()
    one.start()
    assert one.pending_peers() == (0, (1, 2)) and one.rank == 0
    assert one.title == "allreduce ring size=3 nblocks=3"


def test_an_execution_can_run_again():
    for repeated in (False, True):
        seats, executions = made(repeated=repeated, segment=2)
        for turn in range(3):
            for seat in seats:
                seat.fill()
            interleave(executions, turn)
            assert right(seats)
        assert bool(executions[0].prepared) == repeated
        for execution in executions:
            execution.free()
            assert not execution.prepared


@pytest.mark.parametrize("repeated", [False, True])
def test_what_opens_an_execution_comes_first_and_once_a_run(repeated):
    _, executions = made(repeated=repeated, segment=2)
    opened = []
    for one in executions:
        one.binder.opening = opened.append, (one,)
    for turn in range(2):
        interleave(executions, turn)
        assert sorted(map(executions.index, opened)) == sorted([0, 1, 2] * (turn + 1))

    def refuses():
        raise BrokenCommunicatorError("no")

    _, (one, _, _) = made(repeated=repeated)
    one.binder.opening = refuses, ()
    with pytest.raises(BrokenCommunicatorError):
        one.start()


def test_call_hashes_keep_messages_of_calls_that_disagree_apart():
    """Two of three ranks are in a call that the third is not in: nobody gets a message of it."""
    seats, executions = made()
    executions[2].binder.tag = tag_with_hash(0, 77)
    with pytest.raises(StallError):
        interleave(executions)
    assert not right(seats)


def test_a_watch_asks_whether_waiting_is_pointless(monkeypatch):
    Clock(monkeypatch, 1.0)
    _, (one, _, _) = made()
    asked = []

    def listen(awaited):
        asked.append(awaited)
        if len(asked) == 3:
            raise BrokenCommunicatorError("another rank has given up")

    with pytest.raises(BrokenCommunicatorError):
        drive(one, Timeouts(20.0, 30.0, listen))
    assert asked == [one] * 3


def test_long_plans_are_not_kept(monkeypatch):
    monkeypatch.setattr(executor, "MOST_MESSAGES", 7)
    _, executions = made(repeated=True)
    assert not executions[0].repeated  # 2 messages in each of 4 rounds


def test_segments_in_flight_have_tags_and_scratch_of_their_own():
    tags = []

    class Tagged(Loopback):
        def endpoint(self, rank):
            endpoint = super().endpoint(rank)
            batch = endpoint.batch
            endpoint.batch = lambda postings, tag, repeated: tags.append(tag) or batch(
                postings, tag, repeated)
            return endpoint

    seats, executions = made(segment=1, count=12, world=Tagged(3))
    interleave(executions)
    assert right(seats) and set(tags) == {0, 1}
    assert executions[0].plan.depth == 2 and len(executions[0].plan.segments) == 4


def test_drive_runs_to_the_end():
    seats, executions = made(name="recursive_doubling", size=1)
    drive(executions[0], Timeouts(1.0, 1.0))
    assert right(seats)


def test_wait_goes_on_where_start_stopped():
    seats, (one, two) = made(size=2)
    one.start()
    two.start()
    test = one.progress
    one.progress = lambda: two.progress() | test()
    finish(one, Timeouts(1.0, 1.0))
    assert one.done


# -- patience -----------------------------------------------------------------------------------
def test_time_is_up(monkeypatch):
    clock = Clock(monkeypatch, 0.5)  # twice between two looks
    _, (one, _, _) = made()
    with pytest.raises(CollectiveTimeout) as caught:
        drive(one, Timeouts(20.0, 30.0))
    assert (caught.value.rank, caught.value.round, caught.value.peers) == (0, 0, (1, 2))
    assert caught.value.seconds == 20.0 and clock.now == 21.5


def test_a_wait_is_reported_again_and_again(monkeypatch, capsys):
    Clock(monkeypatch, 0.5)
    _, (one, _, _) = made()
    with pytest.raises(CollectiveTimeout):
        drive(one, Timeouts(12.0, 5.0))
    assert capsys.readouterr().err.splitlines() == [
        "hpccoll: no message from ranks 1, 2: allreduce ring size=3 nblocks=3 on rank 0 has waited "
        f"{seconds} s" for seconds in (5, 10)]


@pytest.mark.parametrize("seen, end", [
    ([(), (2,), (2,)], 15.0), ([(2,), (1,), (2,), ()], None), ([(2,), (2,)], 10.0)])
def test_without_a_time_out_a_rank_that_stays_stopped_ends_a_wait(monkeypatch, seen, end):
    """At the next report after the one that names it; one that is alive ends none."""
    Clock(monkeypatch, 0.5)
    states = iter([RankStates("rank 2 is stopped", (), stopped) for stopped in seen])

    class Over(Exception):
        pass

    def states_of(peers):
        assert peers == (1, 2)
        found = next(states, None)
        if found is None:
            raise Over
        return found

    _, (one, _, _) = made()
    with pytest.raises(CollectiveTimeout if end else Over) as caught:
        drive(one, Timeouts(NO_TIMEOUT, 5.0, None, states_of))
    if end:
        assert caught.value.seconds == end and "send SIGCONT to rank 2" in str(caught.value)


def test_whatever_moves_starts_the_clock_again(monkeypatch):
    Clock(monkeypatch, 1.0)
    _, executions = made()
    watch = WaitTimer(executions[0], 10.0, 20.0)
    for _ in range(8):
        watch.look()
    watch.reset()
    for _ in range(8):
        watch.look()


def test_a_wait_spins_then_yields_then_sleeps_longer_and_longer(monkeypatch):
    clock = Clock(monkeypatch, 0.4 * backoff.YIELD)
    wait = backoff.Backoff()
    for _ in range(SPINS):
        wait.pause()
    assert not clock.yields and not clock.now
    for _ in range(240):
        wait.pause()
    assert clock.yields == 3
    assert clock.sleeps == sorted(clock.sleeps) and 0 < clock.sleeps[0] < backoff.YIELD / 10
    assert clock.sleeps[-1] == backoff.LONGEST_SLEEP


def test_a_wait_for_the_library_at_work_only_yields(monkeypatch):
    clock = Clock(monkeypatch, 1.0)
    wait = backoff.Backoff()
    wait.sleeps = False
    for _ in range(99):
        wait.pause()
    assert clock.yields == 99 - SPINS and not clock.sleeps


def test_a_wait_ends_with_its_budget():
    assert not backoff.wait_until(lambda: False, budget=5e-3)
    assert backoff.wait_until(iter([False, False, True]).__next__, budget=60)


def test_a_barrier_moves_no_data():
    made = schedule("barrier", "dissemination", 3)
    world = Loopback(3)
    seats = [Seat(made, Problem(BARRIER, 3), rank) for rank in range(3)]
    executions = [seat.execution(world.endpoint(seat.rank)) for seat in seats]
    interleave(executions)
    assert all(execution.done for execution in executions)


def test_views_are_elements_of_the_users_memory():
    seats, (one, _, _) = made()
    phase = next(one.binder.phases(0, 0))
    posting, = (p for p in phase.batch.postings if p.sends)
    memory = seats[0].memory[IN].array
    assert numpy.shares_memory(posting.array, memory)
    assert not numpy.shares_memory(posting.array, seats[0].memory[OUT].array)
    posting, = (p for p in phase.batch.postings if not p.sends)
    assert numpy.shares_memory(posting.array, seats[0].scratch.array)


def test_other_threads_take_short_turns_during_a_call():
    """The switch interval is short in nested and parallel calls, and as before afterwards."""
    before, seen = sys.getswitchinterval(), []

    class Run:
        spins, done = 0, False

        def __init__(self, inner=None, error=None):
            self.inner, self.error = inner, error

        def start(self):
            if self.inner is not None:
                drive(self.inner, Timeouts(1.0, 1.0))
            seen.append(sys.getswitchinterval())
            if self.error:
                raise self.error
            self.done = True

    drive(Run(Run()), Timeouts(1.0, 1.0))
    assert max(seen) < 0.001 and len(seen) == 2
    assert sys.getswitchinterval() == before
    with pytest.raises(KeyError):
        drive(Run(error=KeyError("made for a test")), Timeouts(1.0, 1.0))
    assert sys.getswitchinterval() == before
    threads = [threading.Thread(target=lambda: [drive(Run(), Timeouts(1.0, 1.0))
                                                for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == before and max(seen) < 0.001
