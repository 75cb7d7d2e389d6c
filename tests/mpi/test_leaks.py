"""A hundred thousand mixed calls on three communicators leave nothing behind."""

import gc
import resource

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms.flat import recursive_doubling
from hpccoll.comm.base import MOST_WISHES
from hpccoll.comm.cache import MOST_CALLS
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.context import MOST_KEPT, MOST_PREPARED

#: Calls in all, and those after which everything that is kept has been made.
CALLS, WARM = 100_000, 50_000
#: Growth that is not a leak: the allocators' slack, in KiB.
SLACK = 6 << 10


def resident():
    """Resident memory of this process, in KiB; its peak where there is no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() >> 10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(600)
@pytest.mark.skipif(MPI.COMM_WORLD.size > 2, reason="what two ranks leave behind, more do, too")
def test_mixed_calls_leave_nothing_behind(world):
    comms = [world, world.Dup(), world.Split(0, -world.rank)]
    lasting = [comm.Allreduce_init(numpy.ones(8), numpy.empty(8)) for comm in comms]
    small, large = numpy.ones(16), numpy.ones(3000)

    def call(number):
        comm, kind = comms[number % 3], number // 3 % 11
        if kind < 4:  # the hot path, on arrays that stay
            comm.Allreduce(small, out_small)
        elif kind == 4:  # arrays that come and go
            fresh = numpy.ones(100 + number // 33 % 50)
            comm.Allreduce(fresh, numpy.empty_like(fresh))
        elif kind == 5:
            comm.Bcast(large, number % comm.size)
        elif kind == 6:
            comm.allreduce(number)
        elif kind == 7:
            comm.Allgather(small, numpy.empty((comm.size, 16)))
        elif kind == 8:
            comm.Iallreduce(small, out_small).Wait()
        elif kind == 9:
            lasting[number % 3].Start()
            lasting[number % 3].Wait()
        else:
            comm.Barrier()

    out_small, number = numpy.empty(16), 0
    with comms[0].using(allreduce="ring"), comms[1].using(allreduce="recursive_doubling",
                                                           bcast="binomial", allgather="ring"):
        while number < WARM:
            call(number)
            number += 1
        gc.collect()
        memory = resident()
        while number < CALLS:
            call(number)
            number += 1
    gc.collect()
    grown = resident() - memory
    assert grown < SLACK, f"{grown} KiB more after {CALLS - WARM} calls"
    for comm in comms:
        context = existing_context(comm)
        if context is None:  # alone, and the MPI library served everything
            continue
        assert max(len(context.plans), len(context.seen)) <= MOST_KEPT
        assert context.batches.weight <= MOST_PREPARED
        assert not context.abandoned
    for request in lasting:
        request.Free()
    for comm in comms[1:]:
        comm.Free()


@pytest.mark.mpi
def test_sizes_and_wishes_that_are_always_new_are_forgotten(world):
    for count in range(1, MOST_CALLS + 100):
        world.Allreduce(numpy.ones(count, "i1"), numpy.empty(count, "i1"))
    cache = world._cache
    assert max(map(len, (cache, cache.choices, cache.calls or ()))) <= MOST_CALLS
    data, out = numpy.ones(4), numpy.empty(4)
    for _ in range(3 * MOST_WISHES):
        with world.using(allreduce=lambda rank, size: recursive_doubling.allreduce(rank, size)):
            world.Allreduce(data, out)
        assert (out == world.size).all()
    assert len(world._caches) <= MOST_WISHES + 1


def shared_kilobytes():
    """Shared memory that this process has touched."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))


@pytest.mark.mpi
def test_a_communicator_for_short_messages_takes_little_shared_memory(world):
    """Libraries that keep a communicator for each object would fill /dev/shm."""
    data, out, kept = numpy.ones(4), numpy.empty(4), []
    with world.using(allreduce="recursive_doubling"):
        world.Allreduce(data, out)
        before = shared_kilobytes()
        for _ in range(10):
            kept.append(world.Dup())
            with kept[-1].using(allreduce="recursive_doubling"):
                kept[-1].Allreduce(data, out)
        # The library's own memory of a communicator counts too.
        assert (shared_kilobytes() - before) / len(kept) < 200
        with kept[0].using(allreduce="recursive_doubling"):
            kept[0].Allreduce(numpy.ones(5000), large := numpy.empty(5000))
    for comm in kept:
        comm.Free()
    assert (out == world.size).all() and (large == world.size).all()
