"""What each rank is doing, from made-up logs and processes."""

import numpy
import pytest

from hpccoll.guard import board as module
from hpccoll.guard.board import (
    AWAY,
    FREE,
    GONE,
    HALTED,
    KILLED,
    NATIVE,
    UNKNOWN,
    WAITING,
    Board,
    saying,
)
from hpccoll.machine.processes import ALIVE, DEAD, STOPPED, Process
from hpccoll.runtime.description import Description
from hpccoll.runtime.log import (
    BEAT,
    DOING_START,
    ENDED,
    FREED,
    INSIDE,
    LEFT,
    LOG_BYTES,
    NUMBER,
    STAMPS,
    Log,
)

SUM = Description("allreduce", "100", "f8", "sum", algorithm="ring")


def log(number=7):
    made = Log(numpy.zeros(LOG_BYTES, "u1"))
    made.describe(SUM.stamp(), SUM)
    made.words[NUMBER] = number
    made.words[STAMPS + number % 64] = SUM.stamp() if number else 0
    return made


@pytest.fixture
def ranks(monkeypatch):
    """A board of four ranks, their logs, and what their processes are."""
    states = {rank: ALIVE for rank in range(4)}
    monkeypatch.setattr(module, "state_of", lambda process: states[process.pid])
    logs = {rank: log() for rank in range(4)}
    board = Board(0, logs, [Process("here", rank, 1) for rank in range(4)])
    return board, logs, states


def test_a_rank_that_waits(ranks):
    board, logs, _ = ranks
    logs[1].say(saying("allreduce ring", 7, 2, (0, 3), "train.py:5"))
    found = board.doing(1)
    assert found[:8] == (1, WAITING, 7, 6, "allreduce ring", "train.py:5", 2, (0, 3))
    assert str(found) == ("rank 1 waits for rank(s) 0, 3 in round 2 of call 7, allreduce ring at "
                          "train.py:5")


def test_a_rank_that_has_not_looked_for_a_while_does_not_wait_any_more(ranks):
    board, logs, _ = ranks
    logs[1].say(saying("allreduce ring", 7, 2, (0, 3), "train.py:5"))
    logs[1].words[BEAT] -= 10 ** 10
    assert board.doing(1)[:4] == (1, AWAY, 7, 7)
    assert "rank 1 is in no wait; its last call was call 7, allreduce, count 100" in str(
        board.doing(1))
    logs[1].say({"number": 7, "site": "train.py:99"}, looks=False)  # what the watcher answers
    assert "is in no wait but at train.py:99; its last call" in str(board.doing(1))


def test_what_was_said_of_an_earlier_call_is_of_no_use(ranks):
    board, logs, _ = ranks
    logs[1].say(saying("allreduce ring", 6, 2, (0, 3), "train.py:5"))
    assert board.doing(1).state == AWAY and not board.doing(1).site


def test_a_rank_in_the_library(ranks):
    board, logs, _ = ranks
    logs[2].words[INSIDE] = 7
    assert board.doing(2)[:4] == (2, NATIVE, 7, 6)
    assert "rank 2 is in the MPI library's hands in call 7, allreduce" in str(board.doing(2))


@pytest.mark.parametrize("state, found, words", [(DEAD, KILLED, "was killed"),
                                                 (STOPPED, HALTED, "is stopped")])
def test_a_process_that_does_not_run(ranks, state, found, words):
    board, _, states = ranks
    states[3] = state
    assert board.doing(3).state == found and f"rank 3 {words}" in str(board.doing(3))
    assert board.lost(8, 0) == ((3,) if state == DEAD else ())


def test_a_killed_rank_may_have_done_its_part(ranks, monkeypatch):
    board, logs, states = ranks
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    states[3], states[2], logs[2].words[NUMBER] = DEAD, DEAD, 6
    assert board.lost(7, 0.5) == (2,)  # it will never come to call 7
    clock[0] += 0.6
    assert board.lost(7, 0.5) == (2, 3)
    assert board.lost(0, 0.5) == (2, 3)  # requests have no number


@pytest.mark.parametrize("how, state", [(FREED, FREE), (ENDED, GONE)])
def test_a_rank_that_left_in_good_order_has_done_its_part(ranks, how, state):
    board, logs, states = ranks
    logs[3].words[LEFT], states[3] = how, DEAD
    assert board.doing(3).state == state
    assert board.lost(7, 0) == () and board.lost(8, 0) == (3,)


def test_processes_are_looked_at_now_and_then(ranks, monkeypatch):
    board, _, states = ranks
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    assert board.lost(8, 0) == ()
    states[1] = DEAD
    assert board.lost(8, 0) == ()
    assert board.lost(8, 0, at_once=True) == (1,)
    states[2] = DEAD
    clock[0] += module.BETWEEN
    assert board.lost(8, 0) == (1, 2)


def test_ranks_of_other_machines_are_not_heard_of(monkeypatch):
    monkeypatch.setattr(module, "state_of", lambda process: DEAD)
    board = Board(0, {0: log()}, [Process("here", 1, 1), Process("there", 1, 1, "n7"),
                                  Process("here", 2, 1), Process("", 3, 1)])
    assert [one.state for one in board.all()] == [AWAY, UNKNOWN, KILLED, UNKNOWN]
    assert str(board.doing(1)) == "rank 1 is not heard of, on n7"
    assert str(board.doing(3)) == "rank 3 is not heard of"
    assert "its calls are not known" in str(board.doing(2))
    assert board.lost(1, 0) == (2,)


def test_those_that_are_behind_come_first(ranks):
    board, logs, _ = ranks
    for rank in (1, 3):
        logs[rank].say(saying("allreduce ring", 7, 0, (2,), ""))
    logs[2].words[NUMBER] = 0
    told = board.tell(7).split("; ")
    assert told[0] == "rank 2 is in no wait" and told[1] == "it has made no call"
    assert told[2].startswith("rank 1 waits") and told[3].startswith("rank 3 waits")


def test_a_torn_text_is_nothing():
    made = log()
    made.say({"number": 7, "site": "x" * 9000})  # longer than there is room
    assert made.doing() == {}
    made.say({"number": 7, "site": "here"})
    made.memory[DOING_START] = ord("x")
    assert made.doing() == {}
