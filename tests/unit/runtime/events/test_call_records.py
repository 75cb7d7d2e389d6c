"""Calls of the MPI library's, noted in a log: by machine code where it was built, or by Python."""

import weakref

import numpy
import pytest

from hpccoll.runtime.events import call_records as module
from hpccoll.runtime.events.call_log import (
    ALARM,
    END,
    INSIDE,
    LOG_BYTES,
    NUMBER,
    REMEMBERED,
    START,
    Log,
    place_of,
)


@pytest.fixture(params=["compiled", "python"])
def noted(request, monkeypatch):
    """``noted(method, log, ...)`` of both kinds."""
    if request.param == "compiled" and not module.BUILT:
        pytest.skip("the compiled executor was not built")
    monkeypatch.setattr(module, "BUILT", request.param == "compiled")
    return module.log_calls


@pytest.fixture
def log():
    return Log(numpy.zeros(LOG_BYTES, "u1"))


def refuse():
    raise RuntimeError("refused")


def test_a_call_is_noted_while_it_runs(noted, log):
    seen = []

    def method(*args, **options):
        seen.append((log.words[NUMBER], log.words[INSIDE], args, options))
        return "result"

    call = noted(method, log, 77, refuse, lambda error: False)
    for number in range(1, 2 * REMEMBERED):
        assert call(1, b=number) == "result"
        assert seen[-1] == (number, number, (1,), {"b": number})
        assert log.words[INSIDE] == 0 and log.call_hash(number) == 77
    assert log.call_hash(2 * REMEMBERED - 1) == 77


@pytest.mark.parametrize("unsent, number", [(True, 0), (False, 1)])
def test_a_call_that_sent_nothing_does_not_count(noted, log, unsent, number):
    caught = []

    def failed(error):
        caught.append(error)
        return unsent

    def method():
        raise KeyError("wrong")

    with pytest.raises(KeyError, match="wrong") as raised:
        noted(method, log, 77, refuse, failed)()
    assert caught == [raised.value] and log.words[NUMBER] == number and log.words[INSIDE] == 0


def test_a_better_error_is_raised(noted, log):
    def failed(error):
        raise ValueError("rank 3 is gone") from error

    def method():
        raise KeyError("wrong")

    with pytest.raises(ValueError, match="rank 3") as raised:
        noted(method, log, 77, refuse, failed)()
    assert isinstance(raised.value.__cause__, KeyError)


def test_calls_are_refused_from_the_one_on_that_failed(noted, log):
    made = []
    call = noted(lambda: made.append(1), log, 77, refuse, lambda error: False)
    log.words[ALARM] = 3 + 1  # somebody has given up in call 3
    call()
    call()
    with pytest.raises(RuntimeError, match="refused"):
        call()
    assert len(made) == 2 and log.words[INSIDE] == 0


def test_calls_of_the_interpreter_are_noted(noted, log):
    heard = []
    begin, end = module.begins(log, 77, heard.append, False), module.ends(log)
    log.words[NUMBER] = 5
    for number in range(6, 6 + 2 * REMEMBERED):
        place = place_of(number)
        before = log.words[place + START]
        log.words[place + END] = 9
        begin()
        assert (log.words[NUMBER], log.call_hash(number)) == (number, 77) and not log.words[INSIDE]
        assert log.words[place + START] >= before and not log.end_of(number)
        end()
        assert log.end_of(number)
    assert not heard
    log.words[ALARM] = 1
    begin()
    assert heard == [True] and log.words[NUMBER] == number + 1


def test_what_another_rank_has_said_is_raised_where_a_call_begins(noted, log):
    def heard(in_turn):
        raise KeyError(in_turn)

    log.words[ALARM] = 1
    with pytest.raises(KeyError, match="True"):
        module.begins(log, 77, heard, False)()
    log.words[ALARM] = 0
    with pytest.raises(KeyError, match="True"):  # the log does not say so: it is asked each time
        module.begins(log, 77, heard, True)()


def test_what_notes_calls_keeps_the_log(noted):
    memory = numpy.zeros(LOG_BYTES, "u1")
    kept, log = weakref.ref(memory), Log(memory)
    notes = module.begins(log, 77, print, False), module.ends(log)
    del memory, log
    notes[0]()
    assert kept().view("q")[NUMBER] == 1
    del notes
    assert kept() is None
