"""Collectives by NCCL, on its double: exact, in the stream's order, and broken ones are caught."""

from itertools import product

import numpy
import pytest

from support.gpu.nccl import Communicator, NcclError
from support.gpu.nccl_world import DTYPES, METHODS, OPS, REDUCING, NcclRanks, make, world
from support.gpu.streams import CudaError


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_collective_and_type_on_any_number_of_ranks(method, dtype):
    for size, in_place in product(range(1, 9), (False, True)):
        machine, installing = world(size, seed=size if in_place else None)
        with installing as cupy:
            ranks = NcclRanks(cupy, size)
            assert not make(ranks, method, dtype, in_place=in_place)
            ranks.free()
        assert not machine.held["communicators"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operator(dtype):
    _, installing = world(3)
    with installing as cupy:
        ranks = NcclRanks(cupy, 3)
        for method, op in product(REDUCING, OPS):
            assert not make(ranks, method, dtype, op)


@pytest.mark.parametrize("cuda_aware", [True, False])
@pytest.mark.parametrize("kind", ["null", "blocking", "non_blocking"])
def test_any_stream_many_calls_and_whatever_mpi_does(kind, cuda_aware):
    for seed in range(5):
        _, installing = world(3, seed, cuda_aware)
        with installing as cupy:
            ranks = NcclRanks(cupy, 3)
            for method in METHODS:
                assert not make(ranks, method, "f4", kind=kind)


# -- the halves of a hierarchy -------------------------------------------------------------------
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("leader", [False, True], ids=["rails", "leader"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_both_halves_are_an_allreduce_of_any_count(size, leader, in_place):
    from mpi4py import MPI

    from hpccoll.calls import resolve
    from hpccoll.cuda.stream_ordered import as_resident, queue_of

    for count in (0, 1, size - 1, size + 1, 3 * size, 11):
        machine, installing = world(size)
        with installing as cupy:
            ranks, made = NcclRanks(cupy, size), []
            for group in ranks.groups:
                with group.device:
                    source = cupy.asarray(numpy.arange(count, dtype="f4") + group.rank)
                    sink = source if in_place else cupy.empty(count, "f4")
                    specs = [as_resident(MPI.IN_PLACE if in_place else source), as_resident(sink)]
                    call = resolve.allreduce(size, group.rank, *specs, MPI.SUM)
                    stream = queue_of(specs).stream
                    part = group.scatter_sum(call, stream, leader)
                    made.append((group, call, stream, sink, part))
            assert [n for *_, part in made for n in part] == list(range(count))
            assert not leader or len(made[0][-1]) == count
            for group, _, stream, sink, part in made:
                if part:
                    with group.device:
                        doubled = sink[part.start:part.stop]
                        stream.synchronize()
                        doubled.raw[...] *= 2  # what ranks of other nodes add
            for group, call, stream, *_ in made:
                group.gather_parts(call, stream, leader)
            machine.finish_all()
            wanted = 2 * (size * numpy.arange(count) + size * (size - 1) // 2)
            for *_, sink, _ in made:
                assert list(sink.raw) == list(wanted)


def test_work_is_freed_when_it_has_happened():
    machine, installing = world(2)
    with installing as cupy:
        ranks = NcclRanks(cupy, 2)
        assert not make(ranks, "allreduce", "f4")
        for group in ranks.groups:
            with group.device:
                array = cupy.asarray(numpy.zeros(4, "f4"))
                group.nccl_rank.allReduce(array.data.ptr, array.data.ptr, 4, 7, 0, 0)
        with pytest.raises(CudaError, match="under way"):
            ranks.groups[0].free()
        ranks.groups[0].abort()
        machine.nulls[0].synchronize()  # nobody waits for what was ended
        with ranks.groups[1].device, pytest.raises(CudaError, match="ever"):
            machine.nulls[1].synchronize()
        with pytest.raises(NcclError, match="aborted"):
            ranks.groups[0].check()


# -- who may take part ---------------------------------------------------------------------------


def test_a_fault_of_a_call_is_told(monkeypatch):
    machine, installing = world(2)
    with installing as cupy:
        ranks = NcclRanks(cupy, 2)
        machine.faults["allReduce"] = 0
        with pytest.raises(CudaError, match="allReduce"):
            make(ranks, "allreduce", "f4")
        machine.faults["ncclAsyncError"] = 0
        with pytest.raises(CudaError, match="ncclAsyncError"):
            ranks.groups[0].check()
        assert isinstance(ranks.groups[0].nccl_rank, Communicator)
