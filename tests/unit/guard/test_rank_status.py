"""What each rank is doing, from made-up logs and processes."""

from types import SimpleNamespace

import numpy
import pytest

from hpccoll.guard import rank_status as module
from hpccoll.guard.call_offsets import describe_offset
from hpccoll.guard.rank_status import (
    DEBUGGED,
    FREE,
    GONE,
    HALTED,
    IN_PROGRAM,
    KILLED,
    NATIVE,
    UNKNOWN,
    WAITING,
    RankStatus,
    waiting_status,
)
from hpccoll.machine.processes import ALIVE, DEAD, STOPPED, TRACED, Process
from hpccoll.runtime.events.call_log import (
    ASKED,
    BEAT,
    DOING_START,
    ENDED,
    FREED,
    INSIDE,
    LEFT,
    LOG_BYTES,
    NUMBER,
    Log,
    LogRecord,
)
from hpccoll.runtime.planning.description import Description

SUM = Description("allreduce", "100", "f8", "sum", algorithm="ring")


def log(number=7):
    made = Log(numpy.zeros(LOG_BYTES, "u1"))
    made.describe(SUM.call_hash(), SUM)
    made.words[NUMBER] = number
    made.write_start(number, SUM.call_hash() if number else 0)
    return made


@pytest.fixture
def ranks(monkeypatch):
    """A rank status of four ranks, their logs, and what their processes are."""
    states = {rank: ALIVE for rank in range(4)}
    monkeypatch.setattr(module, "state_of", lambda process: states[process.pid])
    logs = {rank: log() for rank in range(4)}
    board = RankStatus(0, logs, [Process("here", rank, 1) for rank in range(4)])
    return board, logs, states


def test_a_rank_that_waits(ranks):
    board, logs, _ = ranks
    logs[1].publish_status(waiting_status("allreduce ring", 7, 2, (0, 3), "train.py:5"))
    found = board.activity(1)
    assert found[:8] == (1, WAITING, 7, 6, "allreduce ring", "train.py:5", 2, (0, 3))
    assert str(found) == ("rank 1 waits for ranks 0, 3 in round 2 of call 7, allreduce ring at "
                          "train.py:5")


def test_a_rank_that_has_not_looked_for_a_while_does_not_wait_any_more(ranks):
    board, logs, _ = ranks
    logs[1].publish_status(waiting_status("allreduce ring", 7, 2, (0, 3), "train.py:5"))
    logs[1].words[BEAT] -= 10 ** 10
    assert board.activity(1)[:4] == (1, IN_PROGRAM, 7, 7)
    assert "rank 1 is in the program; its last call was call 7, allreduce, count 100" in str(
        board.activity(1))
    logs[1].publish_status({"number": 7, "site": "train.py:99"}, looks=False)  # from the watchdog
    assert "rank 1 is at train.py:99; its last call was call 7" in str(board.activity(1))


def test_a_rank_that_does_not_answer_may_hold_the_interpreter_lock(ranks, monkeypatch):
    board, logs, _ = ranks
    now = 10 ** 12
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: now))
    logs[1].words[ASKED] = now - 10 ** 9 // 2
    assert "rank 1 is in the program; " in str(board.activity(1))
    logs[1].words[ASKED] = now - 4 * 10 ** 9
    held = "rank 1 is in code that holds the interpreter lock"
    assert str(board.activity(1)).startswith(
        f"{held} (no answer for 4 s); its last call was call 7")
    assert board.states(8).missing.startswith(f"{held}, not in call 8 (one call behind), rank 2 is")
    board.counts = False  # ranks that do not compare calls have no thread that answers
    assert str(board.activity(1)) == "rank 1 is alive; its calls are unknown"


def test_what_was_said_of_an_earlier_call_is_of_no_use(ranks):
    board, logs, _ = ranks
    logs[1].publish_status(waiting_status("allreduce ring", 6, 2, (0, 3), "train.py:5"))
    assert board.activity(1).state == IN_PROGRAM and not board.activity(1).site


def test_a_rank_in_the_library(ranks):
    board, logs, _ = ranks
    logs[2].words[INSIDE] = 7
    assert board.activity(2)[:4] == (2, NATIVE, 7, 6)
    assert "rank 2 is in the MPI library in call 7, allreduce" in str(board.activity(2))


@pytest.mark.parametrize("state, found, words", [(DEAD, KILLED, "was killed"),
                                                 (TRACED, DEBUGGED, "is held by a debugger"),
                                                 (STOPPED, HALTED, "is stopped")])
def test_a_process_that_does_not_run(ranks, state, found, words):
    board, _, states = ranks
    states[3] = state
    assert board.activity(3).state == found and f"rank 3 {words}" in str(board.activity(3))
    assert board.failed_ranks(8, 0) == ((3,) if state == DEAD else ())
    states = board.states(8)
    assert states.missing.startswith(f"rank 3 {words}")
    assert states.stopped == ((3,) if state == STOPPED else ())


def test_a_killed_rank_may_have_done_its_part(ranks, monkeypatch):
    board, logs, states = ranks
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    states[3], states[2], logs[2].words[NUMBER] = DEAD, DEAD, 6
    assert board.failed_ranks(7, 0.5) == (2,)  # it will never come to call 7
    clock[0] += 0.6
    assert board.failed_ranks(7, 0.5) == (2, 3)
    assert board.failed_ranks(0, 0.5) == (2, 3)  # requests have no number


def test_a_rank_that_left_after_an_error_was_not_killed(ranks):
    board, logs, states = ranks
    logs[3].write_report({"reason": "CollectiveTimeout: rank 1 is stopped", "number": 7})
    states[3] = DEAD
    assert str(board.activity(3)).startswith(
        "rank 3 has ended after its CollectiveTimeout; its last")


@pytest.mark.parametrize("how, state", [(FREED, FREE), (ENDED, GONE)])
def test_a_rank_that_left_in_good_order_has_done_its_part(ranks, monkeypatch, how, state):
    board, logs, states = ranks
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    logs[3].words[LEFT], states[3] = how, DEAD
    assert board.activity(3).state == state
    assert board.failed_ranks(7, 0) == () and board.failed_ranks(8, 0) == (3,)
    # Of requests, which have no number, only missing messages show it.
    assert board.failed_ranks(0, 0) == board.failed_ranks(0, 0, peers=(3,)) == ()
    clock[0] += module.LAST_MESSAGES
    assert board.failed_ranks(0, 0) == () and board.failed_ranks(0, 0,
                                                                             peers=(1, 3)) == (3,)


def test_processes_are_looked_at_now_and_then(ranks, monkeypatch):
    board, _, states = ranks
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert board.failed_ranks(8, 0) == ()
    states[1] = DEAD
    assert board.failed_ranks(8, 0) == ()
    assert board.failed_ranks(8, 0, at_once=True) == (1,)
    states[2] = DEAD
    clock[0] += module.BETWEEN
    assert board.failed_ranks(8, 0) == (1, 2)


def test_ranks_of_other_machines_are_not_heard_of(monkeypatch):
    monkeypatch.setattr(module, "state_of", lambda process: DEAD)
    board = RankStatus(0, {0: log()}, [Process("here", 1, 1), Process("there", 1, 1, "n7"),
                                             Process("here", 2, 1), Process("", 3, 1)])
    assert [one.state for one in board.all()] == [IN_PROGRAM, UNKNOWN, KILLED, UNKNOWN]
    assert str(board.activity(1)) == "rank 1 has not reported, on n7"
    assert str(board.activity(3)) == "rank 3 has not reported"
    assert "its calls are unknown" in str(board.activity(2))
    assert board.states(1, (1,)).missing.startswith("rank 2 was killed")
    assert board.failed_ranks(1, 0) == (2,)
    monkeypatch.setattr(module, "state_of", lambda process: ALIVE)
    assert board.states(1, (1,)).missing == ("rank 1 has not reported, on n7, rank 3 has not "
                                                   "reported")


def test_the_missing_rank_comes_first_then_each_rank_in_order(ranks):
    board, logs, states = ranks
    for rank in (0, 1, 3):
        logs[rank].publish_status(waiting_status("allreduce ring", 7, 0, (2,), ""))
    logs[2].words[NUMBER] = 0
    found = board.states(7, (1,))
    assert found.missing == "rank 2 is in the program, not in call 7 (7 calls behind)"
    assert [line.partition(" ")[2][0] for line in found.lines] == ["0", "1", "2", "3"]
    assert found.lines[2] == "rank 2 is in the program; it has made no call"
    logs[2].words[NUMBER] = 7  # it has done its part; now it is rank 1 that must send
    assert board.states(7, (1,)).missing == "no message from rank 1"
    assert board.states(7).missing == "all ranks are in call 7"
    states[1] = STOPPED
    assert board.states(7, (3,)).missing == "rank 1 is stopped"


def test_a_stopped_rank_that_did_its_part_is_not_missing(ranks):
    board, logs, states = ranks
    states[2] = STOPPED
    logs[1].words[NUMBER] = 6
    found = board.states(7, (1,))
    assert found.missing == "rank 1 is in the program, not in call 7 (one call behind)"
    assert not found.stopped


def test_at_most_eight_ranks_are_named(monkeypatch):
    monkeypatch.setattr(module, "state_of", lambda process: ALIVE)
    board = RankStatus(0, {rank: log() for rank in range(12)},
                             [Process("here", rank, 1) for rank in range(12)])
    found = board.states(8)
    assert len(found.lines) == 9 and found.lines[-1] == "and 4 more ranks"
    assert "rank 8" in found.missing and found.missing.endswith(
        "and 3 more ranks, rank 0 is one call ahead of all others")
    assert "rank 11 is" in board.states(8, (11,)).missing  # who is waited for is among them


def test_a_torn_text_is_nothing():
    made = log()
    made.publish_status({"number": 7, "site": "x" * 9000})  # longer than there is room
    assert made.status() == {}
    made.publish_status({"number": 7, "site": "here"})
    made.memory[DOING_START] = ord("x")
    assert made.status() == {}


A, B = 1, 2


def records_of(*calls):
    return {rank: LogRecord(len(made), dict(enumerate(made, 1)), {}, None)
            for rank, made in enumerate(calls)}


@pytest.mark.parametrize("mine, theirs, text", [
    ((A, A, A), (A, A, B), "rank 1 may be one call ahead: call 3 repeats call 2 there"),
    ((A, A, B), (A, A, A), "rank 1 may be one call behind: the other ranks repeat call 2"),
    ((B, A), (A, A), ""), ((A, B), (A, 3), ""), ((A, A), (A, A), ""), ((), (A, A), "")])
def test_a_repeated_call_shows_who_is_ahead(mine, theirs, text):
    assert describe_offset(records_of(theirs, mine, theirs), (1,)) == text


def test_two_halves_blame_nobody():
    assert describe_offset(records_of((A, A), (A, B)), ()) == ""
