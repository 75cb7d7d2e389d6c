"""NCCL on real ranks, each with a machine of NCCL's double: they meet in a folder."""

import tempfile
import time
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cuda.nccl_group import NcclGroup
from hpccoll.cuda.nccl_runner import NcclRunner
from hpccoll.errors import ArgumentError, CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.events.call_log import INSIDE, NUMBER
from hpccoll.units import ranks_text
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
NAMES = ("allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "gather",
         "scatter")


@pytest.fixture
def machine():
    machine = Devices()
    machine.first = RANK
    return machine


@pytest.fixture
def cuda_aware():
    return True


@pytest.fixture
def cupy(cuda_aware, machine):
    with tempfile.TemporaryDirectory() as folder:
        folder = WORLD.bcast(folder)
        with installed(cuda_aware, machine, Path(folder)) as cupy:
            yield cupy
        WORLD.Barrier()


def community(**how):
    return hpccoll.Comm(MPI.Intracomm(WORLD.Dup()), **how)


@pytest.mark.parametrize("contract", ["tags", "always", "off"])
def test_every_collective(cupy, contract):
    comm, root = community(contract=contract), SIZE - 1
    with comm.using(**dict.fromkeys(NAMES, "nccl")), cupy.cuda.Stream(non_blocking=True):
        mine = numpy.arange(3 * SIZE, dtype="f4") + 100 * RANK
        everyone = [numpy.arange(3 * SIZE, dtype="f4") + 100 * rank for rank in range(SIZE)]
        source, sink, part = cupy.asarray(mine), cupy.empty(3 * SIZE, "f4"), cupy.empty(3, "f4")
        comm.Allreduce(source, sink)
        assert (cupy.asnumpy(sink) == sum(everyone)).all()
        comm.Reduce(source, sink, MPI.MAX, root)
        found = cupy.asnumpy(sink)  # every process has to let its device go on
        assert root != RANK or (found == everyone[-1]).all()
        comm.Reduce_scatter_block(source, part)
        assert (cupy.asnumpy(part) == sum(everyone)[3 * RANK:3 * RANK + 3]).all()
        comm.Allgather(part, sink)
        assert (cupy.asnumpy(sink) == sum(everyone)).all()
        comm.Alltoall(source, sink)
        assert (cupy.asnumpy(sink) == numpy.concatenate(
            [one[3 * RANK:3 * RANK + 3] for one in everyone])).all()
        comm.Scatter(source if root == RANK else None, part, root)
        assert (cupy.asnumpy(part) == everyone[root][3 * RANK:3 * RANK + 3]).all()
        comm.Gather(part, sink if root == RANK else None, root)
        cupy.cuda.get_current_stream().synchronize()
        comm.Bcast(sink, root)
        assert (cupy.asnumpy(sink) == everyone[root]).all()
    comm.Free()


@pytest.mark.parametrize("contract", ["tags", "always", "off"])
def test_blocks_of_different_sizes(cupy, contract):
    comm, root, everyone = community(contract=contract), SIZE - 1, range(SIZE)
    with comm.using(**dict.fromkeys(NAMES, "nccl")), cupy.cuda.Stream(non_blocking=True):
        counts, total = [2 * rank for rank in everyone], SIZE * (SIZE - 1)  # rank 0 has none
        whole = numpy.concatenate([numpy.full(2 * rank, rank + 1.0) for rank in everyone])
        mine, sink = cupy.asarray(numpy.full(2 * RANK, RANK + 1.0)), cupy.empty(total)
        comm.Allgatherv(mine, [sink, counts])
        assert (cupy.asnumpy(sink) == whole).all()
        sink[...], mine[...] = 7, RANK + 2
        comm.Gatherv(mine, [sink, counts] if root == RANK else None, root)
        found = cupy.asnumpy(sink)  # every process has to let its device go on
        assert (found == (whole + 1 if root == RANK else 7)).all()
        comm.Scatterv([sink, counts] if root == RANK else None, mine, root)
        assert (cupy.asnumpy(mine) == RANK + 2).all()
        sent, got = [to + 1 for to in everyone], [RANK + 1] * SIZE
        wanted = numpy.concatenate([numpy.full(RANK + 1, 10 * frm + RANK) for frm in everyone])
        given = numpy.concatenate([numpy.full(to + 1, 10 * RANK + to) for to in everyone])
        source = cupy.asarray(given.astype("f8"))
        for typed in (False, True):
            sink, kinds = cupy.empty(sum(got)), [MPI.DOUBLE] * SIZE
            if typed:
                begins = [[8 * sum(each[:n]) for n in everyone] for each in (sent, got)]
                comm.Alltoallw([source, (sent, begins[0]), kinds], [sink, (got, begins[1]), kinds])
            else:
                comm.Alltoallv([source, sent], [sink, got])
            assert (cupy.asnumpy(sink) == wanted).all()
            assert comm._served[0] == "nccl"
    comm.Free()


@pytest.mark.long(every=5)
@pytest.mark.parametrize("cuda_aware", [True, False], ids=["direct", "staged"])
@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize("name", ["nccl+rails", "nccl+leader"])
def test_nccl_inside_nodes_and_ours_across(cupy, name, count):
    unlike = [f"{SIZE - 1},1"] * (name == "nccl+leader" and SIZE > 2)
    for layout in (f"1x{SIZE}", f"{SIZE}x1", *[f"2x{SIZE // 2}"] * (SIZE == 4), *unlike):
        comm = community(layout=layout)
        with comm.using(allreduce=name), cupy.cuda.Stream(non_blocking=True):
            mine = numpy.arange(count, dtype="f8") + RANK
            wanted = SIZE * numpy.arange(count) + SIZE * (SIZE - 1) // 2
            for _ in range(2):
                source, sink = cupy.asarray(mine), cupy.empty(count, "f8")
                comm.Allreduce(source, sink)
                assert (cupy.asnumpy(sink) == wanted).all()
                comm.Allreduce(MPI.IN_PLACE, source)
                read = source.copy()
                source[...] = 7
                assert (cupy.asnumpy(read) == wanted).all()
        comm.Free()


def test_unlike_nodes_are_refused(cupy):
    if SIZE != 3:
        pytest.skip("for three ranks")
    comm = community(layout="2,1")
    x = cupy.asarray(numpy.ones(4))
    with comm.using(allreduce="nccl+rails"), pytest.raises(
            ArgumentError, match=r"2,1 .*nccl\+leader"):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_ranks_that_share_a_device_all_learn_it(cupy, machine):
    comm, machine.first = community(), max(RANK, 1)
    x = cupy.asarray(numpy.ones(4))
    with comm.using(allreduce="nccl"), pytest.raises(
            ArgumentError, match="ranks 0-1.*0000:01:00.0"):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert list(cupy.asnumpy(x)) == [SIZE] * 4
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("unset", [(), (1,), range(SIZE)], ids=["all", "not rank 1", "no rank"])
def test_ranks_share_a_device_if_all_have_the_version_and_the_variable(cupy, machine, monkeypatch,
                                                                       unset):
    monkeypatch.setattr(cupy.cuda.nccl, "get_version", lambda: 23203)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0" if RANK in unset else "1")
    comm, machine.first = community(), 0
    x = cupy.asarray(numpy.ones(4))
    with comm.using(allreduce="nccl"):
        if unset:
            with pytest.raises(ArgumentError, match="share GPU.*NCCL_MULTI_RANK_GPU_ENABLE is not "
                                                    f"1 on {ranks_text(list(unset))}"):
                comm.Allreduce(MPI.IN_PLACE, x)
        else:
            comm.Allreduce(MPI.IN_PLACE, x)
            assert list(cupy.asnumpy(x)) == [SIZE] * 4 and comm._served[0] == "nccl"
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("contract", ["tags", "always"])
def test_ranks_that_call_unlike_things_are_named(cupy, contract):
    comm = community(contract=contract)
    x = cupy.asarray(numpy.ones(4 + (RANK == 1)))
    with pytest.raises(ContractError, match="count"), comm.using(allreduce="nccl"):
        for _ in range(500):
            comm.Allreduce(MPI.IN_PLACE, x)
            time.sleep(0.02)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("contract", ["tags", "always"])
@pytest.mark.parametrize("name", ["nccl", "nccl+rails", "nccl+leader"])
def test_whoever_is_in_nccl_is_looked_after(cupy, contract, name, monkeypatch):
    """Its first calls wait, on the host, for peers that may have failed before they came."""
    comm, seen = community(contract=contract, layout=f"1x{SIZE}"), []
    x = cupy.asarray(numpy.ones(4))
    words = comm._private().guard.logs.mine.words

    def looking(method, group, *args):
        seen.append((method.__name__, words[INSIDE] == words[NUMBER] > 0))
        return method(group, *args)

    for method in (NcclGroup.queue, NcclGroup.scatter_sum, NcclGroup.gather_parts):
        monkeypatch.setattr(NcclGroup, method.__name__, lambda *args, method=method: looking(
            method, *args))
    with comm.using(allreduce=name):
        comm.Allreduce(MPI.IN_PLACE, x)
        cupy.cuda.get_current_stream().synchronize()
    assert seen == [(method, True) for method in (
        ["queue"] if name == "nccl" else ["scatter_sum", "gather_parts"])]
    assert not words[INSIDE]
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name, function", [
    ("nccl+rails", "reduceScatter"), ("nccl+rails", "allGather"), ("nccl+leader", "broadcast")])
def test_who_waits_across_is_told_of_a_failure(cupy, machine, name, function):
    comm, x = community(layout=f"{SIZE}x1"), cupy.asarray(numpy.ones(4))
    with comm.using(allreduce=name):
        comm.Allreduce(MPI.IN_PLACE, x)
        WORLD.Barrier()  # who is still in this call may be told, too
        if RANK == 0:
            machine.faults[function] = 0
        begun = time.monotonic()
        with pytest.raises(HpccollError, match="cudaErrorUnknown"):
            for _ in range(100):
                comm.Allreduce(MPI.IN_PLACE, x)
        assert time.monotonic() - begun < 20


@pytest.mark.mpi(min_size=2)
def test_who_is_in_the_call_before_can_end_it(cupy, machine, monkeypatch):
    """Rank 0 fails in the next call, while rank 1 has still to gather in this one."""
    comm, x = community(contract="tags", layout=f"{SIZE}x1"), cupy.asarray(numpy.ones(4))
    guard, combine = comm._private().guard, NcclRunner._combine_across

    def slowly(ranks, *args):
        combine(ranks, *args)
        WORLD.Barrier()  # nobody is across any more, where each rank is told otherwise
        until = time.monotonic() + 5 * (RANK == 1)
        while not guard.alarm_raised and time.monotonic() < until:
            time.sleep(0.001)
        assert RANK != 1 or guard.alarm_raised

    with comm.using(allreduce="nccl+rails"), monkeypatch.context() as patch:
        patch.setattr(NcclRunner, "_combine_across", slowly)
        comm.Allreduce(MPI.IN_PLACE, x)
        cupy.cuda.get_current_stream().synchronize()
        assert list(cupy.asnumpy(x)) == [SIZE] * 4
        patch.undo()
        if RANK == 0:
            machine.faults["reduceScatter"] = 0
        with pytest.raises(HpccollError, match="cudaErrorUnknown"):
            comm.Allreduce(MPI.IN_PLACE, x)


class Ended(BaseException):
    """What the end of the process is here."""


@pytest.mark.mpi(min_size=2)
def test_who_fails_to_connect_ends_those_who_sit_in_nccl(cupy, monkeypatch):
    monkeypatch.setenv("HPCCOLL_REPORT", "1")  # it knows that they wait in vain
    comm, x = community(), cupy.asarray(numpy.ones(4))
    guard, begun = comm._private().guard, time.monotonic()

    def connect(ndev, commId, rank):
        if RANK == 0:
            raise RuntimeError("out of memory")
        while time.monotonic() < begun + 10:  # for ever, with NCCL
            if guard.alarm_raised:
                raise Ended
            time.sleep(0.01)
        raise RuntimeError("nobody ended it")

    monkeypatch.setattr(cupy.cuda.nccl, "NcclCommunicator", connect)
    with comm.using(allreduce="nccl"), pytest.raises(
            Ended if RANK else CollectiveTimeout, match=None if RANK else "NCCL"):
        comm.Allreduce(MPI.IN_PLACE, x)
    WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("method", ["Allreduce", "Allgatherv"])
def test_a_rank_that_does_not_come_is_named(cupy, monkeypatch, method):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "1")
    comm, x = community(), cupy.asarray(numpy.ones(4 if method == "Allreduce" else SIZE))
    with comm.using(allreduce="nccl", allgather="nccl"):
        getattr(comm, method)(MPI.IN_PLACE, x)
        cupy.cuda.get_current_stream().synchronize()
        WORLD.Barrier()
        begun = time.monotonic()
        if RANK != 1:
            with pytest.raises(HpccollError, match="rank 1|failed"):
                for _ in range(500):
                    getattr(comm, method)(MPI.IN_PLACE, x)
                    time.sleep(0.05)
            cupy.cuda.get_current_stream().synchronize()  # what was queued has been ended
            assert 1 <= time.monotonic() - begun < 30
        WORLD.Barrier()
        if RANK == 1:
            with pytest.raises(HpccollError):
                getattr(comm, method)(MPI.IN_PLACE, x)
