"""Many communicators, and many collectives under way at once, leave nothing behind.

The whole of it takes a minute: ``TESTS_COMMUNICATORS=2000 mpiexec -n 2 python -m mpi4py -m pytest
--with-mpi -s tests/mpi/test_many.py``. ``tests/broken.py`` shows it fail.
"""

import gc
import os
import random
import resource

import numpy
import pytest
from mpi4py import MPI

import hpccoll

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.skipif(
    MPI.COMM_WORLD.size > 3, reason="what few ranks leave behind, more do, too")]
#: Communicators in all, and those after which everything that is kept has been made.
COMMUNICATORS = int(os.environ.get("TESTS_COMMUNICATORS", "120"))
WARM = COMMUNICATORS // 4
#: Collectives under way at once, and times.
MANY, TURNS = 256, 8
#: Growth that is not a leak, in KiB: the allocators' slack.
SLACK = 8 << 10
#: Files and mappings that come and go.
FEW = 8
OURS = {"allreduce": "recursive_doubling", "iallreduce": "recursive_doubling", "ibcast": "linear",
        "iallgather": "ring", "barrier": "dissemination"}


def kept():
    """Resident memory in KiB, open files, and mapped parts of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize() >> 10
    with open("/proc/self/maps", encoding="utf-8") as file:
        maps = sum("hpccoll" in line or "/dev/shm" in line for line in file)
    return resident, len(os.listdir("/proc/self/fd")), maps


def test_thousands_of_communicators_come_and_go(world):
    data, out = numpy.ones(10), numpy.empty(10)
    for number in range(COMMUNICATORS):
        if number == WARM:
            before = kept()
        comm = world.Dup() if number % 3 else world.Split(0, -world.rank)
        if number % 10 == 0:
            comm.zeros(100)
        with comm.using(**OURS):
            comm.Allreduce(data, out)
            assert (out == world.size).all()
        comm.Free()
    after = kept()
    if world.rank == 0:
        print(f"\nafter {WARM} and {COMMUNICATORS} communicators: {before}, {after}")
    assert after[0] - before[0] < SLACK
    assert after[1] <= before[1] + FEW and after[2] <= before[2] + FEW


def test_nested_communicators_are_freed_in_any_order(world):
    order = random.Random(7)
    for _ in range(20):
        chain = [world]
        for depth in range(6):
            parent = chain[-1]
            chain.append(hpccoll.Comm(parent.Dup()) if depth % 2 else parent.Split(0, parent.rank))
        for comm in chain:
            with comm.using(**OURS):
                assert comm.allreduce(1) == world.size
                out = numpy.zeros(3)
                comm.Allreduce(numpy.ones(3), out)
                assert (out == world.size).all()
        rest = chain[1:]
        order.shuffle(rest)
        for comm in rest:
            comm.Free()


@pytest.mark.parametrize("count", [8, 30_000])
def test_many_collectives_under_way(world, count):
    """Waited for in another order on every rank."""
    order = random.Random(world.rank)
    rank, size = world.rank, world.size
    world.layout  # sets it up: until then the library serves nonblocking calls
    with world.using(**OURS):
        for turn in range(TURNS):
            requests, checks = [], []
            for number in range(MANY):
                value = float(turn + number)
                if number % 3 == 0:
                    out = numpy.zeros(count)
                    requests.append(world.Iallreduce(numpy.full(count, value), out))
                    checks.append((out, value * size))
                elif number % 3 == 1:
                    out = numpy.full(count, value if rank == number % size else -1.0)
                    requests.append(world.Ibcast(out, number % size))
                    checks.append((out, value))
                else:
                    out = numpy.zeros(count * size)
                    requests.append(world.Iallgather(numpy.full(count, value), out))
                    checks.append((out, value))
            for index in order.sample(range(MANY), MANY):
                requests[index].Wait()
                out, value = checks[index]
                assert (out == value).all()
            if turn == TURNS // 2:
                before = kept()
    after = kept()
    if rank == 0:
        print(f"\n{MANY} under way, {count} elements: {before}, {after}")
    assert after[0] - before[0] < SLACK + MANY * count * size * 8 // 1024
    assert after[1] <= before[1] + FEW
