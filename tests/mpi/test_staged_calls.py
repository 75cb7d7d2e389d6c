"""Small calls on device memory by kept host memory: how many steps, what stays, how they fail."""

import gc

import numpy
import pytest
from mpi4py import MPI

from hpccoll.comm import staged_calls
from hpccoll.cuda import staging
from hpccoll.errors import BrokenCommunicatorError, BufferArgumentError
from support.gpu.device import installed
from support.gpu.streams import CudaError, Devices
from support.python_calls import python_calls

pytestmark = pytest.mark.mpi
#: Calls of Python functions in a repeated call, at most.
MOST_CALLS = 40
#: The same of a nonblocking or persistent call, which runs segment by segment.
MOST_CALLS_OF_REQUESTS = 600


@pytest.fixture
def comm(world):
    made = world.Dup()
    yield made
    made.Free()


@pytest.fixture
def device(comm):
    """A double of CuPy whose work is done late and in any order that streams allow."""
    with installed(False, Devices(seed=comm.rank)) as cupy:
        yield cupy


def test_a_repeated_call_makes_few_calls_of_python(comm, device):
    source, sink = device.asarray(numpy.arange(8.0)), device.asarray(numpy.zeros(8))
    for call in (lambda: comm.Allreduce(source, sink), lambda: comm.Bcast(source),
                 lambda: comm.Allreduce(MPI.IN_PLACE, [sink, 8, MPI.DOUBLE])):
        # A call that has to wait for another rank makes more.
        assert min(len(python_calls(call)) for _ in range(30)) <= MOST_CALLS


def test_requests_choose_once(comm, device):
    source, sink = device.asarray(numpy.arange(8.0)), device.asarray(numpy.zeros(8))
    prepared = comm.Allreduce_init(source, sink)
    for call in lambda: comm.Iallreduce(source, sink).Wait(), lambda: (
            prepared.Start(), prepared.Wait()):
        # 370 on two ranks, more in a call that waits; 930 if each call compares the algorithms.
        assert min(len(python_calls(call)) for _ in range(30)) <= MOST_CALLS_OF_REQUESTS
    prepared.Free()


@pytest.mark.parametrize("named", ["first", "later", "blocks"])
def test_elements_that_a_call_does_not_name_may_change_meanwhile(comm, device, monkeypatch, named):
    """Another stream writes them: they must not be written back as they were before the call."""
    assert comm.layout is not None  # the MPI library runs the first call otherwise, on a copy
    size, other = comm.size, device.cuda.Stream(non_blocking=True)
    machine = other.machine
    array = device.asarray(numpy.zeros(4 * size))
    source = device.asarray(numpy.full(2, comm.rank + 1.0))
    spec, mine = {"first": ([array, ([2] * size, [2 * one for one in range(size)]), MPI.DOUBLE],
                            slice(2 * size)),
                  "later": ([array, ([2] * size, [2 * (size + one) for one in range(size)]),
                             MPI.DOUBLE], slice(2 * size, None)),
                  "blocks": ([array, ([2] * size, [4 * one for one in range(size)]), MPI.DOUBLE],
                             None)}[named]
    wanted = numpy.repeat(numpy.arange(size) + 1.0, 2)
    repeat = type(comm)._repeat

    def late(*args):
        repeat(*args)
        machine.finish_all()

    monkeypatch.setattr(type(comm), "_repeat", late)
    for turn in range(1, 4):
        with other:
            for place in range(4 * size):
                if (place % 4 > 1) if mine is None else place not in range(*mine.indices(4 * size)):
                    array[place:place + 1] = float(-turn)
        comm.Allgatherv(source, spec)
        machine.finish_all()
        found = device.asnumpy(array)
        rest = numpy.ones(4 * size, bool)
        rest[mine if mine is not None else numpy.arange(4 * size) % 4 < 2] = False
        assert (found[~rest] == wanted).all() and (found[rest] == -turn).all()


def test_arrays_that_a_rank_does_not_use_take_no_memory(comm, device):
    machine = device.cuda.get_current_stream().machine
    source, large = device.asarray(numpy.ones(3)), device.asarray(numpy.zeros(1 << 18))
    comm.Reduce(source, source.copy() if comm.rank == 0 else large)
    assert machine.held["pinned"] <= staged_calls.LEAST_BYTES


def test_small_and_large_calls_take_turns(comm, device):
    """Kept memory grows: earlier forms go on in memory of their own."""
    with device.cuda.Stream(non_blocking=True):
        for count in (10, 20_000, 10, 60_000, 20_000, 10) * 2:
            array = device.asarray(numpy.full(count, comm.rank, "i4"))
            comm.Bcast(array, comm.size - 1)
            array[...] = array.copy()
            assert (device.asnumpy(array) == comm.size - 1).all()


def test_bad_arrays_are_errors_in_repeated_calls_too(comm, device):
    memory = device.asarray(numpy.arange(30.0))
    for _ in range(3):
        comm.Allreduce(memory[:10], memory[10:20])
        with pytest.raises(BufferArgumentError, match="overlap"):
            comm.Allreduce(memory[:10], memory[5:15])
        with pytest.raises(BufferArgumentError, match="contiguous"):
            comm.Allreduce(memory[:20:2], memory[20:])
    comm.Allreduce(memory[:10], memory[10:20])
    assert numpy.array_equal(device.asnumpy(memory[10:20]), comm.size * numpy.arange(10.0))


@pytest.mark.parametrize("function", ["alloc_pinned_memory", "memcpyAsync", "streamSynchronize"])
def test_a_fault_of_the_device_of_a_rank_is_an_error_on_all_ranks(comm, function):
    assert comm.layout is not None  # sets the communicator up
    machine, last = Devices(), comm.size - 1
    with installed(False, machine) as cupy:
        source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
        if comm.rank == last:
            machine.faults[function] = 0
            with pytest.raises(CudaError, match="cudaErrorUnknown"):
                comm.Allreduce(source, sink)
        else:
            with pytest.raises(BrokenCommunicatorError, match=f"rank {last} failed in .*allreduce"):
                comm.Allreduce(source, sink)


def test_nothing_is_left_when_a_communicator_is_freed(comm, device):
    made = comm.Dup()
    with device.cuda.Stream(non_blocking=True):
        array = device.asarray(numpy.arange(6.0))
        for _ in range(3):
            made.Allreduce(MPI.IN_PLACE, array)
        made.Free()
    assert numpy.array_equal(device.asnumpy(array), comm.size ** 3 * numpy.arange(6.0))


def test_memory_of_the_last_copy_is_held(comm):
    """Also where that is not the newest memory, and the forms of calls are forgotten."""
    made, machine = comm.Dup(), Devices()
    with installed(False, machine) as device, device.cuda.Stream(non_blocking=True):
        few, many = device.asarray(numpy.ones(6)), device.asarray(numpy.ones(20_000))
        for array in few, few, few, many:
            made.Allreduce(MPI.IN_PLACE, array)
        few[...] = device.asarray(numpy.ones(6))
        made.Allreduce(MPI.IN_PLACE, few)  # by memory that was kept before
        made.forget_calls()
        gc.collect()
        assert (device.asnumpy(few) == comm.size).all()
        made.Allreduce(MPI.IN_PLACE, few)
        made.Free()
        assert (device.asnumpy(few) == comm.size ** 2).all()
        staging.keep(Done, numpy.empty(0))  # which lets go of memory that is no longer read
        gc.collect()
        assert not machine.held["pinned"]  # while ``made`` exists


class Done:
    """An event that has happened."""

    done = True
