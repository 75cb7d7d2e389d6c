"""How long ranks wait for what the others say of a failure."""

import numpy
import pytest

from hpccoll.guard import exchange
from hpccoll.guard.exchange import SharedLogs
from hpccoll.runtime.log import LOG_BYTES, NUMBER, STORY, Log


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a tenth of a second at each pause; what happens then, by when."""
    happens, now = {}, [0.0]

    def pause(seconds):
        now[0] += 0.1
        happens.pop(round(now[0], 1), lambda: None)()

    monkeypatch.setattr(exchange.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(exchange.time, "sleep", pause)
    return now, happens


def logs(*numbers):
    """The logs of ranks that have come to these calls, as rank 0 sees them."""
    made = {rank: Log(numpy.zeros(LOG_BYTES, "u1")) for rank in range(len(numbers))}
    for log, number in zip(made.values(), numbers):
        log.words[NUMBER] = number
    return SharedLogs(made, 0, None)


@pytest.mark.parametrize("numbers, gone, number, seconds", [
    ((5, 5), (), 5, 0.3),      # it has come, and left
    ((5, 4), (), 5, 0.8),      # it has not come
    ((5, 4), (1,), 5, 0.0),    # nor will it
    ((5, 4), (), 0, 0.3),      # of a request, which has no number
    ((5, 6, 4), (2,), 5, 0.3)])
def test_a_late_rank_is_waited_for_longer_than_one_that_has_left(clock, numbers, gone, number,
                                                                seconds):
    now, _ = clock
    assert logs(*numbers).records(gone, number).keys() == set(range(len(numbers)))
    assert now[0] == pytest.approx(seconds)


def test_nobody_waits_for_those_who_have_told(clock):
    now, happens = clock
    shared = logs(5, 4)

    def tell():
        shared.logs[1].tell({"number": 5})
    happens[0.5] = tell
    assert shared.records((), 5)[1].story == {"number": 5}
    assert now[0] == pytest.approx(0.5) and shared.logs[1].words[STORY]
