"""Collectives by NCCL, on its double: exact, in the stream's order, and broken ones are caught."""

import threading
from contextlib import nullcontext
from itertools import product

import numpy
import pytest

from hpccoll.cuda import device as devices
from hpccoll.cuda import nccl_group as nccl
from hpccoll.cuda.nccl import Member, nccl_library
from hpccoll.cuda.nccl_group import NcclGroup, join
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


# -- what breaks it ------------------------------------------------------------------------------
def on_another_stream(obj, array, cupy):
    """A stream of each device that is not the caller's."""
    known = vars(cupy).setdefault("others", {})
    with array.device:
        return known.setdefault(array.device.id, cupy.cuda.Stream(non_blocking=True)), True


def in_another_order(group, call, stream):
    """Blocks that are sent without being one call."""
    for peer in range(group.size):
        group.nccl_rank.send(nccl.at(call.source, 0), 4, group.bytes, peer, stream.ptr)


def in_place_as_mpi_has_it(group, call, stream):
    """The result of a reduce-scatter at the beginning, where other ranks' blocks are read."""
    each = call.source.count // group.size
    group.nccl_rank.reduceScatter(nccl.at(call.source), nccl.at(call.sink), each,
                                  *group.elements(call), stream.ptr)


def left_in_its_place(group, call, stream):
    """The result of a reduce-scatter where NCCL puts it, not where MPI does."""
    each = call.source.count // group.size
    group.nccl_rank.reduceScatter(
        nccl.at(call.source), nccl.at(call.sink, group.rank * each), each, *group.elements(call),
        stream.ptr)


def copied_on_the_null_stream(group, call, stream):
    """Work of ours that is on no stream of the caller's."""
    each = call.source.count // group.size
    left_in_its_place(group, call, stream)
    sink = call.sink.array
    if group.rank:
        with sink.machine.nulls[group.device.id]:
            sink[:each] = sink[group.rank * each:group.rank * each + each]


def sent_from_where_it_arrives(group, call, stream):
    """An alltoall in place, without a copy."""
    each = call.sink.count // group.size
    with group.group_calls():
        for peer in range(group.size):
            where = nccl.at(call.sink, peer * each)
            group.nccl_rank.send(where, each, group.bytes, peer, stream.ptr)
            group.nccl_rank.recv(where, each, group.bytes, peer, stream.ptr)


def too_much(group, call, stream):
    """More than the buffer has."""
    group.nccl_rank.allReduce(nccl.at(call.source), nccl.at(call.sink), 999,
                              *group.elements(call), stream.ptr)


def by_each_its_own(group, call, stream):
    """A call of which ranks say different things."""
    group.nccl_rank.allReduce(nccl.at(call.source), nccl.at(call.sink), 7 - group.rank,
                              *group.elements(call), stream.ptr)


#: What is broken: where, what is there instead, and a call that it breaks.
BREAKS = {
    "another stream than the caller's": (devices, "_stream_of", on_another_stream, "allreduce"),
    "blocks that are no group": (NcclGroup, "group_calls", lambda group: nullcontext(), "alltoall"),
    "sends without receives": ("alltoall", in_another_order),
    "in place as MPI has it": ("reduce_scatter_block", in_place_as_mpi_has_it),
    "a result that stays where NCCL puts it": ("reduce_scatter_block", left_in_its_place),
    "a copy on another stream": ("reduce_scatter_block", copied_on_the_null_stream),
    "what is sent is where something arrives": ("alltoall", sent_from_where_it_arrives),
    "more than there is": ("allreduce", too_much),
    "ranks that do not agree": ("allreduce", by_each_its_own),
    "an operator for another one": (NcclGroup, "elements", lambda group, call: (7, 2), "allreduce"),
    "a type for another one": (NcclGroup, "elements", lambda group, call: (2, 0), "allreduce"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_variant_is_caught(what, monkeypatch):
    *where, instead, method = BREAKS[what] if len(BREAKS[what]) == 4 else (
        *BREAKS[what][1:], BREAKS[what][0])
    in_place = method != "allreduce" and what not in ("blocks that are no group",)

    def found():
        _, installing = world(3)
        with installing as cupy:
            try:
                return make(NcclRanks(cupy, 3), method, "f4", in_place=in_place)
            except CudaError as error:
                return str(error)

    assert not found()
    if where:
        monkeypatch.setattr(*where, instead)
    else:
        monkeypatch.setattr(nccl, "QUEUES", {**nccl.QUEUES, method: instead})
    assert found()


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
class Meeting:
    """What ranks in threads need of a communicator."""

    def __init__(self, size):
        self.size, self.barrier, self.told = size, threading.Barrier(size, timeout=20), {}
        self.meet = self.barrier.wait

    def run(self, function):
        """``function(comm, rank)`` of each rank in a thread; what they return."""
        results = [None] * self.size

        def work(rank):
            results[rank] = function(Seat(self, rank), rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return results


class Seat:
    """One of them."""

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.meeting.size

    def allgather(self, value):
        self.meeting.told[self.rank] = value
        self.meeting.barrier.wait()
        told = [self.meeting.told[rank] for rank in range(self.meeting.size)]
        self.meeting.barrier.wait()
        return told

    def bcast(self, value):
        return self.allgather(value)[0]


def joined(cupy, size, device_of=lambda rank: rank):
    def one(comm, rank):
        return join(comm, comm, cupy.cuda.Device(device_of(rank)),
                    lambda failed: comm.meeting.meet())
    return Meeting(size).run(one)


def test_ranks_with_a_device_each_make_a_communicator():
    machine, installing = world(3)
    with installing as cupy:
        groups = joined(cupy, 3)
        assert [(group.rank, group.size) for group in groups] == [(0, 3), (1, 3), (2, 3)]
        assert machine.held["communicators"] == 3


def test_ranks_that_share_a_device_are_told():
    machine, installing = world(3)
    with installing as cupy:
        told = joined(cupy, 3, lambda rank: rank // 2)
        assert len(set(told)) == 1 and "ranks 0-1 share GPU 0000:00:00.0" in told[0]
        assert not machine.held["communicators"]
        with pytest.raises(NcclError, match="GPU"):  # as NCCL itself would say
            nccl_module = nccl_library()
            number = nccl_module.get_unique_id()
            for rank in range(2):
                nccl_module.NcclCommunicator(2, number, rank)


def test_a_rank_without_nccl_keeps_all_from_it(monkeypatch):
    _, installing = world(2)
    with installing as cupy:
        def introduce(device):
            return Member("here", f"gpu{device.id}", "2.27.3",
                          problem="" if device.id else "CuPy finds no NCCL")

        monkeypatch.setattr(nccl, "introduce", introduce)
        assert joined(cupy, 2) == ["rank 0: CuPy finds no NCCL"] * 2


def test_a_failure_in_the_middle_leaves_nothing():
    machine, installing = world(2)
    with installing as cupy:
        machine.faults["ncclCommInitRank"] = 1
        told = joined(cupy, 2)
        assert told[0] == told[1] and "ncclCommInitRank: cudaErrorUnknown" in told[0]
        assert not machine.held["communicators"]


def test_who_waits_for_others_too_long_leaves_nothing():
    machine, installing = world(1)

    def late(failed):
        raise TimeoutError

    with installing as cupy, pytest.raises(TimeoutError):
        seat = Seat(Meeting(1), 0)
        join(seat, seat, cupy.cuda.Device(0), late)
    assert not machine.held["communicators"]


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
