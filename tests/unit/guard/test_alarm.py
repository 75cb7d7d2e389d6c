"""How long ranks wait for what the others say of a failure."""

from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from hpccoll.guard import alarm
from hpccoll.guard.alarm import MessagedLogs, SharedLogs
from hpccoll.runtime.events.call_log import (
    ALARM,
    EARLY_BYTES,
    FAILED,
    LOG_BYTES,
    NUMBER,
    STORY,
    TEXT_BYTES,
    TEXTS_START,
    Log,
    LogRecord,
)
from hpccoll.runtime.planning.description import Description


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a tenth of a second at each pause; what happens then, by when."""
    happens, now = {}, [0.0]

    def wait_until(test, budget):
        end = now[0] + budget
        while not test() and now[0] < end:
            now[0] += 0.1
            happens.pop(round(now[0], 1), lambda: None)()

    # Of this module alone: threads that other tests have left use the others'.
    monkeypatch.setattr(alarm, "wait_until", wait_until)
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
    assert now[0] == pytest.approx(seconds, abs=0.11)


def test_nobody_waits_for_those_who_have_told(clock):
    now, happens = clock
    shared = logs(5, 4)

    def write_report():
        shared.logs[1].write_report({"number": 5})
    happens[0.5] = write_report
    assert shared.records((), 5)[1].report == {"number": 5}
    assert now[0] == pytest.approx(0.5) and shared.logs[1].words[STORY]


def test_a_call_of_objects_may_be_taken_back(monkeypatch):
    """What cannot be pickled was never sent: a rank that is ahead must not take it for a call."""
    shared, call_hashes, now = logs(5, 5), (0x1111, 0x2222), 10 ** 9
    monkeypatch.setattr("hpccoll.runtime.events.call_log.time",
                        SimpleNamespace(monotonic_ns=lambda: now))
    for log, call_hash, name in zip(shared.logs.values(), call_hashes,
                                    ("barrier", "allgather of objects")):
        log.describe(call_hash, Description(name))
        log.write_start(5, call_hash, now - 10 ** 6)
    assert shared.disagree() and not shared.disagree(settled=True)
    now += 10 ** 9
    assert shared.disagree(settled=True)
    shared.logs[1].words[NUMBER] = 4
    assert not shared.disagree() and not shared.disagree(settled=True)


class Meanwhile:
    """The words of a log; something happens after so many loads and stores in it."""

    def __init__(self, words, count, happens):
        self.words, self.left, self.happens = words, count, happens

    def __getitem__(self, place):
        value = self.words[place]
        self.passed(place)
        return value

    def __setitem__(self, place, value):
        self.words[place] = value
        self.passed(place)

    def passed(self, place):
        if place in (ALARM, FAILED):
            self.left -= 1
            if not self.left:
                self.happens()


@pytest.mark.parametrize("numbers", [(5, 7), (7, 5), (0, 7), (7, 0), (5, 5)])
@pytest.mark.parametrize("count", range(1, 8))
def test_of_two_ranks_that_give_up_at_once_the_first_call_is_told(numbers, count):
    """One does so wholly, between any two of the other's looks at the log of a third."""
    memory = [numpy.zeros(LOG_BYTES, "u1") for _ in range(3)]
    one, other = (SharedLogs({at: Log(each) for at, each in enumerate(memory)}, rank, None)
                  for rank in range(2))
    third = one.logs[2]
    third.words = Meanwhile(third.words, count, lambda: other.raise_alarm({"number": numbers[1]}))
    one.raise_alarm({"number": numbers[0]})
    if third.words.left > 0:  # it has looked less often
        other.raise_alarm({"number": numbers[1]})
    assert [log.words[ALARM] for log in other.logs.values()] == [min(numbers) + 1] * 3


class Messages:
    """A communicator on which rank 1 has begun to tell what failed there."""

    def __init__(self, data, comes):
        self.data, self.comes, self.asked = data, comes, []

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 3

    def Iprobe(self, source, tag, status):
        status.Set_elements(MPI.BYTE, len(self.data))
        return source == 1

    def Recv(self, buffer, source, tag):
        pytest.fail("waits for the end of a message that may never come")

    def Irecv(self, buffer, source, tag):
        self.asked.append(f"from {source}")
        buffer[0][:] = self.data
        return SimpleNamespace(Test=lambda: self.comes)

    def Isend(self, buffer, dest, tag):
        self.asked.append(f"to {dest}")


@pytest.mark.parametrize("comes", [True, False])
def test_ranks_are_told_before_what_others_tell_has_come(clock, comes):
    """A long message comes only while its sender, which may be gone, is in MPI."""
    record = LogRecord(5, {5: 77}, {}, {"number": 5})
    comm = Messages(record.pack(), comes)
    messaged = MessagedLogs(comm)
    messaged.raise_alarm({"number": 5}, gone=())
    assert comm.asked == ["from 1", "to 1", "to 2"] if comes else ["from 1", "to 2", "to 1"]
    now, _ = clock
    records = messaged.records(gone=(2,))
    assert comm.asked.count("from 1") == 1
    if comes:
        assert records[1] == record and now[0] == 0
    else:
        assert 1 not in records and now[0] == pytest.approx(alarm.LONGER, abs=0.2)


def test_what_a_dying_rank_was_telling_is_nothing(clock):
    """A request that has failed is null, and would say that all has come."""
    comm = Messages(b"{", True)
    messaged = MessagedLogs(comm)

    def fails():
        comm.Iprobe = lambda *args: False
        raise MPI.Exception(MPI.ERR_OTHER)
    comm.Irecv = lambda *args: SimpleNamespace(Test=fails)
    messaged._receive(1)
    comm.comes, comm.Irecv = True, None
    assert 1 not in messaged.records(gone=(2,)) and not messaged.arriving


def test_descriptions_need_room_only_when_they_are_written():
    asked, room = [], [True]

    def grow(offset, nbytes):
        asked.append((offset, nbytes))
        return room[0]

    memory = numpy.zeros(LOG_BYTES, "u1")
    log = Log(memory, grow)
    for call_hash in range(1, 12):
        room[0] = call_hash < 11
        log.describe(call_hash, Description(f"call {call_hash}"))
    early = (EARLY_BYTES - TEXTS_START) // TEXT_BYTES
    assert [offset for offset, _ in asked] == [
        TEXTS_START + number * TEXT_BYTES for number in range(early, 11)]
    assert list(Log(memory).descriptions()) == list(range(1, 11))  # the last one found no room
