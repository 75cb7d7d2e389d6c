"""Errors of one rank reach all; a stall gets a name; state survives; what is said of a step."""

import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest

from hpccoll.errors import (
    ArgumentError,
    ExchangeError,
    ExchangeMismatch,
    ExchangeStall,
    NonFiniteError,
    RankFailed,
)
from hpccoll.training.compress.scheme import Reduction, Scheme
from hpccoll.training.exchange import Exchange, ExchangeOptions
from support.threads import run_ranks


@pytest.mark.parametrize("order", ["fixed", "negotiated"])
def test_a_rank_that_raises_ends_the_step_of_all(order):
    def rank(comm):
        me, kind = comm.Get_rank(), (ZeroDivisionError if comm.Get_rank() == 1 else RankFailed)
        with pytest.raises(kind) as raised:
            with Exchange(comm, [numpy.zeros(3)] * 2, order=order, progress="calls") as exchange:
                exchange.ready(0, numpy.zeros(3))
                if me == 1:
                    raise ZeroDivisionError("in the backward pass")
                exchange.ready(1, numpy.zeros(3))
                exchange.wait()
        if me != 1:
            assert raised.value.ranks == (1,)
            assert "rank 1" in str(raised.value) and "in the backward pass" in str(raised.value)

    run_ranks(3, rank)


def test_a_rank_that_fails_when_others_only_close_does_not_disturb_them():
    def rank(comm):
        exchange = Exchange(comm, [numpy.zeros(3)], progress="calls", timeout_seconds=20)
        exchange.reduce([numpy.zeros(3)])
        if comm.Get_rank() == 1:
            exchange.fail(ZeroDivisionError())
        exchange.close()

    run_ranks(3, rank)


def test_a_rank_that_closes_in_the_middle_of_a_step():
    def rank(comm):
        exchange = Exchange(comm, [numpy.zeros(3)] * 2, progress="calls")
        exchange.ready(0, numpy.zeros(3))
        if comm.Get_rank() == 0:
            exchange.close()
            with pytest.raises(ExchangeError, match="closed"):
                exchange.wait()
            return
        exchange.ready(1, numpy.zeros(3))
        with pytest.raises(ExchangeError, match="rank 0.*during a step"):
            exchange.wait()
        exchange.close()

    run_ranks(2, rank)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:hpccoll. rank")
@pytest.mark.parametrize("order", ["fixed", "negotiated"])
def test_a_stall_names_the_array_and_the_rank_while_that_computes(order):
    over = threading.Event()

    def rank(comm):
        me = comm.Get_rank()
        exchange = Exchange(comm, [numpy.zeros(3)] * 2, names=["bias", "weight"], order=order,
                            report_seconds=0.05, timeout_seconds=1.5)
        exchange.ready("weight", numpy.zeros(3))
        if me == 1:
            over.wait(20)  # its program computes, and its thread answers
            time.sleep(0.1)
        else:
            exchange.ready("bias", numpy.zeros(3))
        try:
            with pytest.raises(ExchangeStall) as raised:
                exchange.wait()
        finally:
            over.set()
            exchange.close()
        assert raised.value.arrays == ("bias",) and raised.value.ranks == (1,)
        assert "array 'bias' is missing on rank 1" in str(raised.value)

    run_ranks(3, rank)


@pytest.mark.filterwarnings("ignore:hpccoll. rank")
def test_a_stall_that_ends_is_only_a_warning():
    inspectors = {}

    def rank(comm):
        with Exchange(comm, [numpy.zeros(3)], names=["weight"], report_seconds=0.02) as exchange:
            inspectors[comm.Get_rank()] = exchange._failures.stall_inspector
            end = time.monotonic() + 20
            while comm.Get_rank() == 0 and time.monotonic() < end:
                if 1 in inspectors and inspectors[1].diagnosis is not None:
                    break
                time.sleep(0.01)
            assert exchange.reduce([numpy.ones(3)])[0].tolist() == [1, 1, 1]

    run_ranks(2, rank)
    assert "rank 0" in str(inspectors[1].diagnosis)


class Sum(Reduction):
    """Adds up, exactly; remembers the sum of what it was given as its error."""

    def _reduce(self, values):
        self.vector("error", values)
        self.vectors["error"] += values
        total = numpy.empty_like(values)
        yield self.comm.Iallreduce(values, total)
        values[...] = total / self.size


@dataclass(frozen=True)
class Same(Scheme):
    """Loses nothing."""

    name: ClassVar[str] = "same"

    def start(self, comm, shapes):
        return Sum(self, comm, shapes)

    def wire_bytes(self, shapes, size, step=None):
        return 7.0


@pytest.mark.parametrize("order", ["fixed", "negotiated"])
@pytest.mark.parametrize("op", ["average", "sum"])
def test_a_scheme_reduces_floats_and_its_state_follows_the_arrays(order, op):
    def rank(comm):
        me, scale = comm.Get_rank(), 1 if op == "average" else 2
        like = [numpy.zeros(3), numpy.zeros((2, 2), "f2")]
        options = {"names": ["a", "b"], "compress": Same(), "op": op, "order": order,
                   "progress": "calls"}
        with Exchange(comm, like, **options) as exchange:
            for _ in range(2):  # buckets are cut anew in between
                a, b = numpy.full(3, 4.0 ** me), numpy.full((2, 2), 2.0 + me, "f2")
                exchange.ready("a", a)
                exchange.ready("b", b)
                exchange.wait()
                assert a.tolist() == [2.5 * scale] * 3 and (b == 2.5 * scale).all()
            state = exchange.state()
            assert state["a"]["error"].tolist() == [2 * 4.0 ** me] * 3
            if order == "fixed":
                with Exchange(comm, like, bucket_bytes=0, first_bucket_bytes=0,
                              **options) as other:
                    other.load(state)
                    again = other.state()
                assert again["b"]["error"].tolist() == state["b"]["error"].tolist()
                assert exchange.report().wire_bytes == 14

    run_ranks(2, rank)


@pytest.mark.parametrize("order", ["fixed", "negotiated"])
def test_numbers_that_are_not_finite_are_refused_where_a_scheme_cannot_carry_them(order):
    def rank(comm):
        with pytest.raises(NonFiniteError, match="'w'.*not|'w'.*NaN") as raised:
            with Exchange(comm, [numpy.zeros(300)], names=["w"], compress="topk:density=0.01",
                          order=order, progress="calls") as exchange:
                exchange.reduce([numpy.full(300, numpy.nan if comm.Get_rank() == 1 else 1.0)])
        assert raised.value.arrays == ("w",) and raised.value.ranks == (1,)
        with Exchange(comm, [numpy.zeros(3)], progress="calls") as plain:
            assert numpy.isnan(plain.reduce([numpy.full(3, numpy.nan)])[0]).all()

    run_ranks(2, rank)


def test_what_an_exchange_says_of_a_step():
    def rank(comm):
        with Exchange(comm, [numpy.zeros(4), numpy.zeros((2, 3))], names=["a", "b"],
                      progress="calls") as exchange:
            with pytest.raises(ArgumentError, match="no complete step"):
                exchange.report()
            exchange.begin()
            exchange.ready("b", numpy.zeros((2, 3)))
            exchange.ready("a", numpy.zeros(4))
            exchange.wait()
            profile, report = exchange.profile(), exchange.report()
        assert profile["arrays"][1] == {"name": "b", "shape": [2, 3], "dtype": "float64",
                                        "itemsize": 8}
        assert 0 <= profile["ready_seconds"][1] < profile["ready_seconds"][0]
        assert profile["backward_seconds"] == profile["ready_seconds"][0]
        assert report.nbytes == 80 and report.wire_bytes == 80  # 2n(P-1)/P
        assert 0 < report.exposed <= report.seconds and "exposed" in str(report)

    run_ranks(2, rank)


def test_state_of_the_start_is_the_roots():
    def rank(comm):
        me = comm.Get_rank()
        with Exchange(comm, progress="calls") as exchange:
            fixed = numpy.full(3, me, "i4")
            fixed.flags.writeable = False
            half, flags = numpy.full((2, 2), me, "f2"), numpy.array([me == 1, True])
            results = exchange.broadcast([half, fixed, flags, numpy.zeros(0)], root=1)
            assert results[0] is half and (half == 1).all()
            assert results[1].tolist() == [1, 1, 1] and fixed.tolist() == [me] * 3
            assert flags.tolist() == [True, True]
            with pytest.raises(ExchangeError, match="differs between ranks"):
                exchange.broadcast([numpy.zeros(3 + me)])

    run_ranks(3, rank)


@pytest.mark.parametrize("field, value", [
    ("transfer", "pigeon"), ("lanes", 0), ("vote_seconds", -1), ("partition_bytes", -1),
    ("credit_bytes", 1.5)])
def test_unusable_options(field, value):
    with pytest.raises(ArgumentError, match=field):
        ExchangeOptions(**{field: value})


def test_ranks_that_make_different_calls_are_told():
    def rank(comm):
        with pytest.raises(ExchangeMismatch, match="different calls"):
            with Exchange(comm, [numpy.zeros(4, "f4")]) as exchange:
                if comm.Get_rank():
                    exchange.broadcast([numpy.zeros(4, "f4")])
                else:
                    exchange.reduce([numpy.zeros(4, "f4")])

    run_ranks(2, rank)
