"""What the watchdog's thread finds in made-up logs: which calls differ, who is told, how often."""

from types import SimpleNamespace

import numpy
import pytest

from hpccoll.errors import BrokenCommunicatorError, ForeignMessage
from hpccoll.errors.contract import ContractError
from hpccoll.errors.waits import RankStates
from hpccoll.guard import guard as guards
from hpccoll.guard.alarm import MessagedLogs, SharedLogs
from hpccoll.guard.guard import Guard
from hpccoll.guard.library_calls import LibraryCalls
from hpccoll.guard.watchdog import WATCHDOG
from hpccoll.runtime.events.call_log import (
    ALARM,
    ASKED,
    FREED,
    INSIDE,
    LEFT,
    LOG_BYTES,
    NUMBER,
    SOME_TIME,
    Log,
)
from hpccoll.runtime.execution.executor import Timeouts
from hpccoll.runtime.planning.description import Description

SUM, MAX = (Description("allreduce", "9", "f8", operator, algorithm="native")
            for operator in ("sum", "max"))


def call(log, description, ended=True):
    """Note a call of the MPI library's."""
    log.describe(description.call_hash(), description)
    number = log.words[NUMBER] + 1
    log.write_start(number, description.call_hash())
    log.write_end(number, SOME_TIME * ended)
    log.words[NUMBER] = number


@pytest.fixture
def made(monkeypatch):
    """Rank 0 of two, with a guard of its own; nobody waits for what others tell."""
    monkeypatch.setattr("hpccoll.guard.alarm.PATIENCE", 0)
    logs = {rank: Log(numpy.zeros(LOG_BYTES, "u1")) for rank in range(2)}
    guard = Guard.__new__(Guard)
    guard.rank, guard.logs, guard.compares_calls = 0, SharedLogs(logs, 0, None), True
    guard.always = False
    guard.ranks = SimpleNamespace(size=2)
    guard.timeouts = Timeouts(60.0, 60.0, None, None)
    guard.write_record = lambda why, failed: None
    guard.lock, guard.failure, guard.unraised = guards.threading.RLock(), None, None
    guard.on_failure = lambda raise_failure: None
    guard.losses = SimpleNamespace(explain=lambda error, title: error, known=False)
    guard.rank_status = SimpleNamespace(failed_ranks=lambda *args, **options: (), gone={},
                                        states=lambda *args: RankStates("rank 1 is late"))
    monkeypatch.setattr(WATCHDOG, "add", lambda native: None)
    guard.library = LibraryCalls(guard)
    return guard, logs


def test_a_difference_in_every_call_of_a_fast_loop_is_found(made, capfd):
    """Where no call of the last look is remembered at the next one."""
    guard, logs = made
    for _ in range(2):
        for _ in range(100):
            call(logs[0], SUM)
            call(logs[1], MAX)
        assert guard.failure is None
        guard.library._look_back()
    assert isinstance(guard.unraised, ContractError) and guard.unraised.field == "operator"
    assert logs[1].words[ALARM], "the other one is not told"
    for _ in range(3):
        guard.library._look_back()
    assert capfd.readouterr().err.count("result may be wrong on rank 0: ranks disagree") == 1
    with pytest.raises(ContractError):
        guard.raise_failure()
    with pytest.raises(BrokenCommunicatorError):
        guard.raise_failure()


def test_one_look_is_not_enough(made):
    """A call that fails at once is taken back."""
    guard, logs = made
    call(logs[0], SUM)
    call(logs[1], MAX)
    guard.library._look_back()
    logs[1].words[NUMBER] = 0
    guard.library._look_back()
    call(logs[1], SUM)
    guard.library._look_back()
    assert guard.failure is None


@pytest.mark.parametrize("inside", [0, 1])
def test_a_call_that_has_not_ended_is_not_looked_back_at(made, inside):
    """Of the library's, or of ours: who waits in it finds out itself."""
    guard, logs = made
    call(logs[0], SUM, ended=False)
    logs[0].words[INSIDE] = inside
    call(logs[1], MAX)
    for _ in range(3):
        guard.library._look_back()
    assert guard.failure is None
    logs[0].write_end(1)
    for _ in range(2):
        guard.library._look_back()
    assert guard.failure is not None


def test_a_call_made_while_the_thread_finds_it_raises_the_difference(made, monkeypatch):
    """From when the failure is known, the next call gets what was found; and only once."""
    guard, logs = made
    raised = []

    def told(raise_failure):
        with pytest.raises(Exception) as caught:
            raise_failure()
        raised.append(type(caught.value))
    guard.on_failure = told
    for _ in range(2):
        call(logs[0], SUM)
        call(logs[1], MAX)
        guard.library._look_back()
    assert raised == [ContractError] and guard.unraised is None


def test_a_call_that_is_given_up_and_ends_keeps_what_was_found(made):
    """The thread is told why, and so is the program's next call."""
    guard, logs = made
    for _ in range(2):
        call(logs[0], SUM)
        call(logs[1], MAX)
        guard.library._look_back()
    found = guard.unraised
    logs[0].words[INSIDE] = 3
    assert guard.library.give_up(
        SimpleNamespace(number=3, title="native allreduce"),
        BrokenCommunicatorError("another rank has given up")) == ""
    assert guard.unraised is found
    with pytest.raises(ContractError):
        guard.raise_failure()


def test_a_call_that_ends_after_it_was_given_up_is_told_of_by_the_next(made):
    guard, logs = made
    call(logs[0], SUM)
    call(logs[1], MAX)
    assert guard.library.give_up(SimpleNamespace(number=1, title="native allreduce"),
                                 ForeignMessage(-1, 0)) == ""
    with pytest.raises(ContractError, match="operator"):
        guard.raise_failure()


def test_who_cannot_speak_says_it_once(made, monkeypatch, capfd):
    """On several nodes, where MPI does not let a thread tell the others."""
    guard, logs = made
    logged = MessagedLogs.__new__(MessagedLogs)
    logged.logs, logged.mine = logs, logs[0]
    guard.logs, guard.ranks.size = logged, 3
    monkeypatch.setattr("hpccoll.guard.guard.MPI",
                        SimpleNamespace(Query_thread=lambda: 0, THREAD_MULTIPLE=3))
    for _ in range(5):
        call(logs[0], SUM)
        call(logs[1], MAX)
        guard.library._look_back()
    guard.library.last_look()
    told = capfd.readouterr().err
    assert told.count("result may be wrong") == 1 and guard.failure is None
    assert "no report from rank 2\n" in told, told


def test_a_freed_communicator_is_looked_at_once_more_only(made, capfd):
    guard, logs = made
    call(logs[0], SUM)
    call(logs[1], MAX)
    guard.library.free()
    assert logs[0].words[LEFT] == FREED
    for _ in range(3):
        assert guard.library.poll() == ""
    guard.library.leave(FREED)
    assert capfd.readouterr().err.count("result may be wrong") == 1 and guard.failure is None


def test_a_call_of_objects_is_taken_back_by_who_knows_that_nothing_was_sent(made):
    """It may have failed to read what it got."""
    guard, logs = made

    def unreadable():
        raise ValueError("made for a test")
    for method in (guard.library.objects(unreadable, Description("gather of objects")),
                   guard.library.watch_blocking(unreadable)):
        with pytest.raises(ValueError, match="made for a test"):
            method()
        assert logs[0].words[NUMBER] == 1  # a call of buffers fails before anything is sent
    guard.library.unsent()
    assert logs[0].words[NUMBER] == 0
    guard.ranks.size = 1  # where no calls are counted
    guard.library.unsent()
    assert logs[0].words[NUMBER] == 0


class Called:
    """Something that is waited for."""

    def __init__(self, title):
        self.title = title

    def pending_peers(self):
        return 0, (1,)


@pytest.mark.parametrize("titles", [["iallreduce"], ["iallreduce", "native ibcast"]])
def test_a_long_wait_for_one_or_several_asks_the_others(made, monkeypatch, titles):
    """And tells, by then, where they are; short ones with pauses between ask nothing."""
    guard, logs = made
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=lambda: int(now[0] * 1e9))
    for module in ("guard.guard", "guard.watchdog", "guard.rank_status",
                   "runtime.events.call_log"):
        monkeypatch.setattr(f"hpccoll.{module}.time", clock)  # other threads keep the process's
    guard.said, guard.asked = ("", 0, 0), 0.0
    for number in range(5):
        now[0] += 0.75
        guard._say(Called(titles[0]), number)
        assert not logs[1].words[ASKED]
    now[0] += 5
    for look in range(10):
        assert not logs[1].words[ASKED]
        guard._say(Called(titles[look % len(titles)]), 5)
        now[0] += 0.125
    assert logs[1].words[ASKED]


def test_nothing_is_said_of_what_the_logs_show_no_more(made, capfd):
    guard, _ = made
    guard.library._tell_late(None)
    assert capfd.readouterr().err == "" and not guard.library.said
