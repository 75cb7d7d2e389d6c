"""Registered device memory on real ranks, each with a double of CUDA: they share it in a folder."""

import gc
from math import inf

import numpy
import pytest
from mpi.ipc_case import RANK, SIZE, community, counted, cupy, folder, given, machine
from mpi4py import MPI

import hpccoll
from hpccoll.cuda import registered
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.errors.mpi import OperatorError
from hpccoll.testing import exact
from support.gpu.device import queue

pytestmark = pytest.mark.mpi(min_size=2)
__all__ = ["cupy", "folder", "machine"]


@pytest.mark.parametrize(("name", "dtype"), [
    ("ring", "f4"), ("ring", "f2"), ("rabenseifner", "c8"), ("recursive_doubling", "f2"),
    ("double_tree", "i8")])
def test_allreduce_with_work_before_and_after(cupy, name, dtype, monkeypatch):
    comm = community()
    with comm.using(allreduce=name, segment_bytes=1024), counted(monkeypatch) as found:
        for count in (0, 1, SIZE - 1, SIZE + 1, 1009):
            x, y = comm.empty(count, dtype, xp=cupy), comm.empty(count, dtype, xp=cupy)
            for turn in range(3):
                x[...] = cupy.asarray(given(count, dtype, turn))
                waits = cupy.cuda.get_current_stream().synchronized
                comm.Allreduce(x, y)
                assert cupy.cuda.get_current_stream().synchronized == waits
                after = y.copy()
                y[...] = x
                wanted = sum(given(count, dtype, turn, rank) for rank in range(SIZE))
                assert (cupy.asnumpy(after) == wanted).all()
            comm.Allreduce(MPI.IN_PLACE, x)
            assert (cupy.asnumpy(x) == wanted).all()
        assert len(found) == 4 * 4  # what is empty lies nowhere
    comm.Free()


def test_other_collectives(cupy, monkeypatch):
    comm, each = community(), 13
    everyone = [given(each * SIZE, "i8", 0, rank) for rank in range(SIZE)]
    x, y, part = (comm.empty(count, "i8", xp=cupy) for count in (each * SIZE, each * SIZE, each))
    x[...] = cupy.asarray(everyone[RANK])
    with comm.using(reduce_scatter="ring", allgather="ring", bcast="binomial", reduce="binomial",
                    alltoall="pairwise", scan="recursive_doubling", gather="binomial",
                    scatter="binomial"), counted(monkeypatch) as found:
        comm.Reduce_scatter_block(x, part)
        mine = slice(each * RANK, each * (RANK + 1))
        assert (cupy.asnumpy(part) == sum(everyone)[mine]).all()
        comm.Allgather(part, y)
        assert (cupy.asnumpy(y) == sum(everyone)).all()
        y[...] = x
        comm.Bcast(y, root=SIZE - 1)
        assert (cupy.asnumpy(y) == everyone[-1]).all()
        comm.Reduce(x, y if RANK == 0 else None, MPI.MAX)
        assert (cupy.asnumpy(y) == (numpy.max(everyone, 0) if RANK == 0 else everyone[-1])).all()
        comm.Alltoall(x, y)
        assert (cupy.asnumpy(y) == numpy.concatenate([one[mine] for one in everyone])).all()
        comm.Scan(x, y)
        assert (cupy.asnumpy(y) == sum(everyone[:RANK + 1])).all()
        comm.Scatter(x if RANK == 0 else None, part)
        assert (cupy.asnumpy(part) == everyone[0][mine]).all()
        comm.Gather(part, y if RANK == 0 else None)
        assert (cupy.asnumpy(y) == (everyone[0] if RANK == 0 else sum(everyone[:RANK + 1]))).all()
        assert len(found) == 8
    comm.Free()


def compose(left, right, datatype):
    """Affine maps one after the other, on the host."""
    a, b = numpy.frombuffer(left, "c16"), numpy.frombuffer(right, "c16")
    b[...] = exact.affine(a, b)


def composed(a, b):
    """The same on the device, as a function of its arrays."""
    into = a.like(numpy.empty_like(a.raw))
    queue(lambda: exact.affine(a.raw, b.raw, into.raw), a, b, into)
    return into


@pytest.mark.parametrize("device", [composed, f"""complex128{{
    fmod(a.real * b.real, {exact.PRIME}.0), fmod(a.real * b.imag + a.imag, {exact.PRIME}.0)}}"""],
                         ids=["function", "expression"])
def test_operators_of_ones_own_keep_the_order_of_ranks(cupy, device, monkeypatch):
    comm, op = community(), hpccoll.Op.Create(compose, device=device)
    mine = exact.inputs("affine", "c16", RANK, SIZE, 53)
    for name in ("linear", "recursive_doubling", "rabenseifner"):
        x, y = comm.empty(53, "c16", xp=cupy), comm.empty(53, "c16", xp=cupy)
        with comm.using(allreduce=name, scan="recursive_doubling"), counted(monkeypatch) as found:
            x[...] = cupy.asarray(mine)
            comm.Allreduce(x, y, op)
            whole = y.copy()
            comm.Scan(x, y, op)
        assert len(found) == 2
        for seen, ranks in (whole, SIZE), (y, RANK + 1):
            wanted = exact.exact_reduction("affine", "c16", range(ranks), SIZE, 53)
            assert (cupy.asnumpy(seen) == wanted).all()
    comm.Free()
    op.Free()


def test_ranks_that_do_not_combine_learn_that_an_operator_is_wrong(cupy):
    comm, op = community(), hpccoll.Op.Create(compose, device="a +* b")
    x = comm.zeros(53, "c16", xp=cupy)
    with comm.using(reduce="linear"), pytest.raises(
            OperatorError if RANK == 0 else HpccollError,
            match="compiled" if RANK == 0 else "rank 0"):
        comm.Reduce(MPI.IN_PLACE if RANK == 0 else x, x, op)
        comm.Allreduce(MPI.IN_PLACE, x)  # whoever only sends may be told in the next call
    comm.Free()
    op.Free()


@pytest.mark.parametrize("kind", ["host", "not registered", "too much scratch"])
def test_ranks_may_pass_other_memory(cupy, kind, monkeypatch):
    """Device memory is read by the host; what lies on the host is copied to the device."""
    comm, other = community(), RANK % 2 == 1
    if kind == "too much scratch" and other:
        monkeypatch.setattr(registered, "SCRATCH_BYTES", 0)
    for count in (5, 40_000):
        x = comm.empty(count, "f4", xp=cupy)
        if other and kind != "too much scratch":
            x = numpy.empty(count, "f4") if kind == "host" else cupy.empty(count, "f4")
        for name in ("ring", "recursive_doubling"):
            with comm.using(allreduce=name), counted(monkeypatch) as found:
                for turn in range(3):
                    mine = given(count, "f4", turn)
                    x[...] = mine if isinstance(x, numpy.ndarray) else cupy.asarray(mine)
                    comm.Allreduce(MPI.IN_PLACE, x)
                    wanted = sum(given(count, "f4", turn, rank) for rank in range(SIZE))
                    seen = x if isinstance(x, numpy.ndarray) else cupy.asnumpy(x)
                    assert (seen == wanted).all()
                assert len(found) == 3 * (not other)
    comm.Free()


def test_ranks_that_ask_for_unlike_memory_are_named(cupy):
    comm = community()
    with pytest.raises(ArgumentError, match="xp: .*numpy.*rank 0|xp: .*numpy.*0"):
        comm.empty(3, "f4", xp=numpy if RANK == 0 else cupy)
    comm.Free()


def test_ranks_are_named_by_their_numbers_in_the_communicator(cupy):
    """A node's ranks have numbers of their own, in another order here."""
    comm = community()
    near = comm._private().node
    turned = near.comm.Split(0, -RANK)
    if near.owned:
        near.comm.Free()
    near.comm, near.owned = turned, True
    with pytest.raises(ArgumentError, match="numpy.*rank 0|numpy.*rank 0"):
        comm.empty(3, "f4", xp=numpy if RANK == 0 else cupy)
    comm.Free()


def test_memory_that_the_pool_keeps_makes_room(cupy, machine):
    comm = community()
    if RANK == SIZE - 1:
        machine.faults["malloc"] = 0
    x = comm.zeros(9, "f4", xp=cupy)
    assert "by CUDA IPC" in comm.explain("allreduce", "1M")
    assert machine.calls["free_all_blocks"] == (RANK == SIZE - 1)
    assert list(cupy.asnumpy(x)) == [0] * 9
    comm.Free()


@pytest.mark.parametrize("function", ["malloc", "ipcGetMemHandle", "ipcOpenMemHandle",
                                      "ipcGetEventHandle", "ipcOpenEventHandle"])
def test_where_cuda_fails_on_one_rank_all_have_ordinary_arrays(cupy, machine, function):
    comm = community()
    if RANK == SIZE - 1:
        machine.faults[function] = -inf
    with pytest.warns(RuntimeWarning, match=f"rank {SIZE - 1} .*{function}"):
        x = comm.empty(9, "f4", xp=cupy)
    x[...] = cupy.asarray(given(9, "f4"))
    with comm.using(allreduce="ring"):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert (cupy.asnumpy(x) == sum(given(9, "f4", 0, rank) for rank in range(SIZE))).all()
    assert function in comm.explain("allreduce", "1M")
    comm.Free()


def test_memory_outlives_the_communicator_and_nothing_leaks(cupy, machine):
    comm = community()
    x = comm.zeros(1000, "f4", xp=cupy)
    with comm.using(allreduce="ring"):
        for _ in range(50):
            comm.Allreduce(MPI.IN_PLACE, x)
    assert machine.held["opened"] == 2 * (SIZE - 1)
    assert "by CUDA IPC" in comm.explain("allreduce", "1M")
    comm.Free()
    assert list(cupy.asnumpy(x)) == [0] * 1000
    del x, comm
    machine.finish_all()
    gc.collect()
    left = +machine.held
    assert set(left) <= {"streams"}, left


def test_a_stale_handle_opens_nothing(cupy):
    """A second communicator reads its own memory, not what the first one had open."""
    def sums(comm):
        x = comm.empty(64, "i8", xp=cupy)
        x[...] = cupy.asarray(given(64, "i8"))
        with comm.using(allreduce="ring"):
            comm.Allreduce(MPI.IN_PLACE, x)
        return x

    first = community()
    sums(first)
    first.Free()
    machine = cupy.cuda.get_current_stream().machine
    assert machine.share.closed
    second = community()
    wanted = sum(given(64, "i8", 0, rank) for rank in range(SIZE))
    assert (cupy.asnumpy(sums(second)) == wanted).all()
    second.Free()
