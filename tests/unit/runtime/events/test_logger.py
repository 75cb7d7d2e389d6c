"""The logger: where lines go, what is told once, and that nobody asks for nothing."""

import logging

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError
from hpccoll.runtime.events import logger
from hpccoll.runtime.events.logger import served_by, start
from hpccoll.runtime.planning.choice import Choice


@pytest.fixture
def fresh(monkeypatch):
    """A logger as it is in a fresh process, where pytest does not listen."""
    made = logging.Logger("fresh")
    monkeypatch.setattr(logger, "logger", lambda: made)
    return made


def test_nothing_is_set_up_unless_asked_for(fresh):
    start("")
    assert not fresh.handlers and fresh.level == logging.NOTSET


def test_lines_go_to_standard_error_once(fresh, capsys):
    start("info")
    start("debug")  # a second communicator changes nothing
    fresh.info("one")
    fresh.debug("two")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("hpccoll rank 0: one")


def test_a_program_with_a_handler_of_its_own_gets_the_lines_there(fresh):
    seen = []
    handler = logging.Handler()
    handler.emit = seen.append
    fresh.addHandler(handler)
    start("debug")
    fresh.debug("plan")
    assert fresh.handlers == [handler] and [record.msg for record in seen] == ["plan"]


def test_a_kind_of_call_is_told_once_with_the_reason(caplog):
    caplog.set_level(logging.INFO, "hpccoll")
    comm = hpccoll.Comm(MPI.COMM_SELF, tuning="off")
    data = numpy.ones(8)
    for count in (4, 4, 8):
        comm.Allreduce(MPI.IN_PLACE, data[:count])
    comm.Bcast([data, MPI.DOUBLE.Create_contiguous(2).Commit()])
    told = [record.getMessage() for record in caplog.records if "allreduce" in record.msg % (
        record.args or ())]
    assert len(told) == 2
    assert "allreduce, count 4, f8, sum: native (one rank)" in told[0]
    assert any("bcast" in record.getMessage() for record in caplog.records)


def test_kinds_are_not_remembered_without_end(monkeypatch, caplog):
    monkeypatch.setattr(logger, "MOST_TOLD", 2)
    caplog.set_level(logging.INFO, "hpccoll")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup(), tuning="off")
    for count in range(1, 5):
        comm.Allreduce(MPI.IN_PLACE, numpy.ones(count))
    assert sum("allreduce" in record.getMessage() for record in caplog.records) == 2
    comm.Free()


def test_nobody_listens_nobody_is_told(caplog):
    caplog.set_level(logging.WARNING, "hpccoll")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup(), tuning="off")
    comm.Allreduce(MPI.IN_PLACE, numpy.ones(3))
    assert not caplog.records and not comm._lifetime.logged
    with pytest.raises(HpccollError):
        comm.Allreduce(numpy.ones(3), numpy.ones(2))
    comm.Free()


def test_who_serves_in_words():
    assert served_by(None) == served_by(Choice("native")) == "native"
    assert served_by(Choice("knomial", {"k": 4})) == "knomial k=4"
    assert served_by(Choice(lambda rank, size: None)) == "a user-defined algorithm"
