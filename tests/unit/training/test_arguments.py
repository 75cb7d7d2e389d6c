"""Communicators, lists, names and numbers that are none are refused by name, on this rank alone."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError
from hpccoll.training.arguments import array_names, as_list, as_number, communicator
from hpccoll.training.averaging import ModelAverager
from hpccoll.training.exchange import Exchange
from support.threads import run_ranks


@pytest.mark.parametrize("value, what", [("world", "'world'"), (None, "None"),
                                         (MPI.Intracomm, "Intracomm"), (MPI.INFO_NULL, "<mpi4py")])
def test_what_is_no_communicator(value, what):
    with pytest.raises(ArgumentTypeError, match=f"comm: .*{what}"):
        communicator("comm", value)


def test_a_communicator_that_is_null_or_was_freed():
    freed = MPI.COMM_SELF.Dup()
    freed.Free()
    for value in (MPI.COMM_NULL, freed):
        with pytest.raises(CommunicatorError, match="comm: .*null"):
            communicator("comm", value)
    assert communicator("comm", MPI.COMM_SELF) == MPI.COMM_SELF


def test_a_communicator_of_two_groups():
    class Between:
        Get_rank, is_inter = None, True

    with pytest.raises(CommunicatorError, match="comm.Merge"):
        communicator("comm", Between())


def test_lists():
    assert as_list("like", iter((1, 2))) == as_list("like", (1, 2)) == [1, 2]
    for value in (None, 5, "abc", b"abc"):
        with pytest.raises(ArgumentTypeError, match=f"like: .*{value}|list"):
            as_list("like", value)
    with pytest.raises(ArgumentTypeError, match=r"dict.*list\(it.values\(\)\)"):
        as_list("like", {"weight": 1})


def test_names():
    assert array_names(None, 2) == ["0", "1"] and array_names(("a", "b"), 2) == ["a", "b"]
    for wrong, problem in (("ab", "a list of texts"), ([1, 2], "expected strings, got 1")):
        with pytest.raises(ArgumentTypeError, match=f"names: .*{problem}"):
            array_names(wrong, 2)
    with pytest.raises(ArgumentError, match="names: .*1 names.*2 arrays"):
        array_names(["a"], 2)


def test_numbers():
    assert as_number("rate", numpy.float32(0.5)) == as_number("rate", numpy.array(0.5)) == 0.5
    for wrong in ("1", None, [1], 1j):
        with pytest.raises(ArgumentTypeError, match="rate: .*number"):
            as_number("rate", wrong)


@pytest.mark.parametrize("wrong, problem", [
    ({"comm": "world"}, "comm: .*communicator"),
    ({"like": None}, "like: .*arrays"),
    ({"names": 5}, "names: .*texts"),
    ({"op": MPI.SUM}, "op: .*unknown"),
    ({"prescale": "2"}, "prescale: .*'2'"),
    ({"timeout_seconds": "1"}, "timeout_seconds: .*'1'"),
    ({"report_seconds": -1}, "report_seconds: .*seconds.*0.*-1"),
    ({"recorder": "trace.json"}, "recorder: .*'trace.json'")])
def test_an_exchange_is_refused_before_anything_is_sent(wrong, problem):
    def rank(comm):
        with pytest.raises(ArgumentError, match=problem):
            Exchange(**{"comm": comm, "like": [numpy.zeros(3)], **wrong})
        return comm.sent_bytes

    assert run_ranks(2, rank) == [0, 0]


@pytest.mark.parametrize("call", [lambda exchange: exchange.reduce(None),
                                  lambda exchange: exchange.broadcast(5)])
def test_what_is_brought_must_be_a_list(call):
    exchange = Exchange(MPI.COMM_SELF, [numpy.zeros(3)], progress="calls")
    with pytest.raises(ArgumentTypeError, match="arrays: .*arrays"):
        call(exchange)
    exchange.close()


@pytest.mark.parametrize("wrong, problem", [
    ({"comm": 1}, "comm: .*communicator.*1"),
    ({"arrays": None}, "arrays: .*arrays"),
    ({"arrays": [1.0]}, "arrays: .*array 0.*NumPy")])
def test_averages_of_what_is_none(wrong, problem):
    with pytest.raises(ArgumentTypeError, match=problem):
        ModelAverager(**{"comm": MPI.COMM_SELF, "arrays": [], **wrong})
