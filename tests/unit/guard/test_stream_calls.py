"""Calls that are queued on a device: what becomes of them, seen from the watchdog's thread."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, ForeignMessage, PeerLost
from hpccoll.errors.waits import RankStates
from hpccoll.guard import guard as guards
from hpccoll.guard import watchdog
from hpccoll.guard.guard import Guard
from hpccoll.guard.rank_status import IN_PROGRAM, RankActivity
from hpccoll.guard.stream_calls import StreamMonitor
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.execution.executor import Timeouts
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress import waiting

CALL = Description("allreduce", "4", "f4", "sum", algorithm="nccl")


class Guarding(Guard):
    """A guard of rank 0 of three, whose last call is its fifth; the others' are ``begun``."""

    alarm_raised, speaks = False, True

    def __init__(self, begun=(5, 5, 5)):
        self.rank, self.begun, self.failed, self.stopped = 0, begun, [], ()
        self.compares_calls, self.failure = False, None
        self.dead, self.differ = (), 0
        self.ranks = SimpleNamespace(size=3, comm=SimpleNamespace(
            Get_rank=lambda: 0, Get_size=lambda: 3))
        self.timeouts = Timeouts(2.0, 1.0, None, self.collect_states)
        self.logs = SimpleNamespace(mine=SimpleNamespace(words={NUMBER: 5}),
                                    alarm_raised=lambda in_turn: self.alarm_raised,
                                    logs={}, disagree=lambda settled: self.differ)
        self.rank_status = SimpleNamespace(failed_ranks=lambda number, patience, peers: self.dead)

    def activities(self):
        return [RankActivity(rank, IN_PROGRAM, begun) for rank, begun in enumerate(self.begun)]

    def collect_states(self, peers=()):
        return RankStates(f"ranks {peers} are late", ("rank 1 computes",), self.stopped)

    def peer_lost_error(self, ranks, title):
        return PeerLost(ranks, RankStates("rank 1 was killed"), title)

    def fail(self, error, title, description, tag, site="", number=None, in_thread=False,
             own=False):
        self.failed.append((type(error), number, in_thread))
        self.named = title, description
        self.failure, self.own = error, own
        return error


class Clock:
    """Time of the waits of these modules alone: other threads of the process may sleep."""

    def __init__(self):
        self.seconds = 100.0

    def monotonic(self):
        return self.seconds

    def poll(self, one, *seconds):
        """Poll twice a second until some seconds after the start; a process that stops is late."""
        for end in seconds:
            while self.seconds < 100 + end:
                assert one.poll() == ""
                self.seconds = min(self.seconds + 0.5, 100 + end)
            assert one.poll() == ""


@pytest.fixture
def clock(monkeypatch):
    now = Clock()
    for module in (waiting, guards, watchdog):
        monkeypatch.setattr(module, "time", now)
    return now


class OneDevice:
    """The device that calls are queued on."""

    def __init__(self):
        self.used = 0

    def use(self):
        self.used += 1


def made(guard, check=lambda: None, happened=lambda event: event.done):
    ended = []
    one = StreamMonitor(guard, check, lambda: ended.append(True), OneDevice(), happened)
    guard.compares_calls = True
    event = SimpleNamespace(done=False)
    one.add(CALL, event, object())
    return one, event, ended


def test_calls_that_have_happened_are_forgotten(clock):
    one, event, _ = made(Guarding())
    one.add(CALL, SimpleNamespace(done=True), object())
    assert one.poll() == "" and one.is_busy() and len(one.pending) == 2
    event.done = True
    assert one.poll() == "" and not one.is_busy()
    assert one.drain(1.0)


def test_a_device_that_takes_long_is_only_told_of(clock, capsys):
    guard = Guarding()
    one, _, ended = made(guard)
    clock.poll(one, 1.5, 1.7, 2.6)
    first, line, second = capsys.readouterr().err.splitlines()
    assert first == ("hpccoll: ranks () are late: allreduce, count 4, f4, sum, nccl of NCCL on "
                     "rank 0 has waited 1 s")
    assert line == "  rank 1 computes" and second.endswith("has waited 2 s")
    assert not ended and not guard.failed
    assert not one.drain(1.0)


def test_a_rank_that_stays_stopped_ends_queued_calls(clock):
    guard = Guarding((5, 4, 5))
    guard.use_timeout(float("inf"))
    guard.stopped = 1,
    one, _, ended = made(guard)
    clock.poll(one, 1.5, 1.9)
    assert not ended
    clock.poll(one, 2.6)
    assert ended and guard.failure.peers == (1,) and "SIGCONT to rank 1" in str(guard.failure)


@pytest.mark.parametrize("change, error", [
    ({"begun": (5, 4, 5)}, CollectiveTimeout), ({"dead": (1,)}, PeerLost),
    ({"differ": True}, ForeignMessage), ({"alarm_raised": True}, BrokenCommunicatorError),
    ({"failure": BrokenCommunicatorError("earlier")}, BrokenCommunicatorError)])
def test_what_cannot_happen_any_more_is_ended(clock, capsys, change, error):
    guard = Guarding()
    vars(guard).update(change)
    one, _, ended = made(guard)
    clock.poll(one, 2.5)
    assert one.poll() == "" and ended == [True] and not one.is_busy()
    assert guard.failed == [(error, 5, True)] and not guard.own
    assert "aborts its queued calls, from call 5 on" in capsys.readouterr().err


def test_the_deadline_counts_from_when_something_has_happened(clock):
    guard = Guarding((6, -1, -1))  # ranks of other nodes are never seen to come
    one, first, ended = made(guard)
    guard.logs.mine.words[NUMBER] = 6
    one.add(CALL, SimpleNamespace(done=False), object())
    clock.poll(one, 1.5)
    first.done = True
    clock.poll(one, 3.4)
    assert not ended and not guard.failed
    clock.poll(one, 3.6)
    assert ended and guard.failure.peers == (1, 2)


def test_a_rank_that_is_missing_has_until_the_deadline(clock):
    guard = Guarding((5, 4, 5))
    one, _, ended = made(guard)
    clock.poll(one, 1.9)
    assert not ended
    clock.poll(one, 2.1)
    assert ended and guard.failure.peers == (1,)


def test_a_fault_of_the_library_is_told_at_once(clock, capsys):
    guard = Guarding()

    def check():
        raise RuntimeError("NCCL_ERROR_REMOTE")

    _, _, ended = one, _, ended = made(guard, check)
    one.poll()
    assert ended and "NCCL: RuntimeError: NCCL_ERROR_REMOTE" in capsys.readouterr().err


def test_a_fault_of_the_device_is_told_at_once(clock, capsys):
    def happened(event):
        raise RuntimeError("cudaErrorIllegalAddress")

    one, _, ended = made(Guarding(), happened=happened)
    one.poll()
    assert ended and "RuntimeError: cudaErrorIllegalAddress" in capsys.readouterr().err


def test_the_thread_asks_on_the_device_of_the_calls(clock):
    one, event, _ = made(Guarding())
    one.check = lambda: asked.append(one.device.used)
    asked = []
    one.poll()
    assert asked == [1]


def is_held(lock):
    """Tell whether another thread would have to wait for a lock."""
    with ThreadPoolExecutor(1) as other:
        return not other.submit(lock.acquire, blocking=False).result()


def test_nobody_frees_or_ends_what_is_asked_for_faults(clock):
    one, _, _ = made(Guarding(), lambda: asked.append(is_held(one.lock)))
    asked = []
    one.poll()
    assert asked == [True]
    one.ended = True  # by another thread, after the watchdog has looked
    assert one._fault() is None and asked == [True]


@pytest.mark.parametrize("change", [{"alarm_raised": True},
                                    {"failure": BrokenCommunicatorError("earlier")}])
def test_what_a_rank_has_ended_is_ended_and_not_given_back(clock, change):
    """NCCL waits for a rank that has aborted, for ever."""
    guard = Guarding()
    one, event, ended = made(guard)
    event.done = True
    vars(guard).update(change)
    one.close(1.0, lambda: 1 / 0)
    assert ended == [True] and one.ended


def test_a_last_call_that_does_not_happen_is_a_failure(clock):
    guard = Guarding((5, 4, 5))
    one, _, ended = made(guard)
    one.close(1.0, lambda: 1 / 0)
    assert ended == [True] and guard.failed == [(CollectiveTimeout, 5, True)]
    assert guard.failure.peers == (1,)


def test_what_is_given_back_is_asked_no_more(clock):
    one, event, ended = made(Guarding(), lambda: freed.append("asked"))
    freed = []
    event.done = True
    one.close(1.0, lambda: freed.append((is_held(one.lock), one.ended)))
    assert freed == [(True, True)] and one.poll() == "" and len(freed) == 1
    one.close(1.0, freed.clear)
    assert freed and not ended


def test_what_does_not_happen_is_ended_and_not_given_back(clock):
    one, _, ended = made(Guarding())
    one.close(1.0, lambda: 1 / 0)
    assert ended


def test_a_thread_that_may_not_speak_ends_it_all_the_same(clock, capsys):
    guard = Guarding((5, 4, 5))
    guard.speaks = False
    one, _, ended = made(guard)
    clock.poll(one, 3)
    assert ended and not guard.failed
    with pytest.raises(BrokenCommunicatorError, match="aborted: CollectiveTimeout: ranks .1,. are"):
        one.raise_if_broken()
    assert "ranks (1,) are late" in capsys.readouterr().err


def test_what_fails_in_the_call_ends_it():
    guard = Guarding()
    one, _, ended = made(guard)
    with pytest.raises(BrokenCommunicatorError, match="RuntimeError: no"), one.abort_on_error(CALL):
        raise RuntimeError("no")
    assert ended and guard.failed == [(BrokenCommunicatorError, 5, False)] and guard.own


def test_what_is_told_of_a_failure_is_the_call_that_cannot_end():
    guard, later = Guarding(), CALL._replace(collective="bcast")
    one, _, _ = made(guard)
    guard.logs.mine.words[NUMBER] = 7
    with pytest.raises(BrokenCommunicatorError,
                       match="bcast, .*: Runtime"), one.abort_on_error(later):
        raise RuntimeError("no")
    assert guard.failed[0][1] == 5 and guard.named == ("allreduce, count 4, f4, sum, nccl", CALL)
    one.ended, guard.failed, guard.failure = False, [], None  # now nothing is queued
    with pytest.raises(BrokenCommunicatorError), one.abort_on_error(later):
        raise RuntimeError("no")
    assert guard.failed[0][1] == 8 and guard.named == ("bcast, count 4, f4, sum, nccl", later)
