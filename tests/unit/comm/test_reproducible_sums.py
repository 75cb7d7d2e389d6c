"""Sums of any number of ranks, on ranks that are threads: 1 to 16 of them, the same bits."""

from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays.reproducible import ReproducibleSum, reproducible_sum
from hpccoll.calls import resolve
from hpccoll.calls.facts import facts_of
from hpccoll.comm.reproducible_sums import PIECE, check_kept, is_served, sum_all, sum_call
from hpccoll.errors import ArgumentError
from support.threads import run_ranks

RANDOM = numpy.random.default_rng(0)
TERMS = RANDOM.standard_normal((48, 30)) * 10.0 ** RANDOM.integers(-9, 9, (48, 30))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
def test_one_to_sixteen_ranks(dtype):
    terms = TERMS.astype(dtype)
    expected = reproducible_sum(terms, 0).tobytes()

    def program(comm):
        sums = ReproducibleSum(30, dtype)
        sums.add(terms[comm.rank::comm.size])
        return sum_all(comm, sums).value().tobytes()

    for size in range(1, 17):
        assert set(run_ranks(size, program)) == {expected}


def served(comm, resolver, *args):
    call = resolver(comm.Get_size(), comm.Get_rank(), *args)
    assert is_served(facts_of(call))
    sum_call(comm, call)


def test_long_vectors_are_cut_into_pieces():
    terms = numpy.random.default_rng(1).standard_normal((2, PIECE + 7))

    def program(comm):
        served(comm, resolve.allreduce, terms[comm.rank], found := numpy.empty(PIECE + 7), MPI.SUM)
        return found.tobytes()

    assert set(run_ranks(2, program)) == {terms.sum(axis=0).tobytes()}


def test_what_can_be_kept():
    x = numpy.ones(4)

    def facts(op, array=x, of=resolve.allreduce):
        return facts_of(of(2, 0, array, array.copy(), op))

    for kept in (facts(MPI.MAX), facts(MPI.SUM, numpy.arange(4)), facts(MPI.LAND, x > 0)):
        check_kept(kept, "{}")
        assert not is_served(kept)
    assert is_served(facts(MPI.SUM)) and is_served(facts(MPI.SUM, x.astype("c8")))
    user = MPI.Op.Create(lambda one, two, datatype: None, commute=True)
    for refused in (facts(MPI.PROD), facts(user), facts(MPI.SUM, of=resolve.scan)):
        assert not is_served(refused)
        with pytest.raises(ArgumentError, match="'any-p'.*rounds"):
            check_kept(refused, "i{}")
    user.Free()


def test_device_memory_is_refused():
    source = SimpleNamespace(namespace=None)
    with pytest.raises(ArgumentError, match="device memory"):
        sum_call(None, SimpleNamespace(source=source, sink=None))


def test_threads_do_not_promise_it():
    with pytest.raises(ArgumentError, match="'any-p'.*threads"):
        run_ranks(2, print, determinism="any-p")
