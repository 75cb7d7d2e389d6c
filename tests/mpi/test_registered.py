"""Registered memory: how it is made, ends, and what ranks do without it."""

import gc
import os
import time
import warnings

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError
from hpccoll.runtime.attributes import existing_context
from hpccoll.transport.shm import mapping

pytestmark = pytest.mark.mpi


def test_shapes_types_and_zeros(world):
    for shape, dtype in (((2, 3), "c16"), ((), "f4"), (0, "f8"), ((4, 0), "i2"), (5, bool)):
        for make in (world.empty, world.zeros):
            array = make(shape, dtype)
            assert array.shape == numpy.empty(shape).shape and array.dtype == dtype
            assert array.flags.c_contiguous and array.flags.writeable
            if make == world.zeros:
                assert not array.any()
    own = world.empty(world.rank + 1, "i4")  # every rank its own shape
    own[:] = world.rank
    assert own.size == world.rank + 1
    world.Barrier()
    assert (own == world.rank).all()


def test_arrays_outlive_their_communicator(world):
    child = world.Dup()
    array = child.zeros(100_000)
    array[:] = world.rank
    child.Free()
    gc.collect()
    assert (array == world.rank).all()
    out = numpy.empty_like(array)
    with world.using(allreduce="ring"):
        world.Allreduce(array, out)  # ordinary memory now
    assert (out == world.size * (world.size - 1) / 2).all()
    with pytest.raises(CommunicatorError):
        child.empty(3)


@pytest.mark.parametrize("shape, dtype, error", [
    (-1, "f8", ArgumentError), ((2, -3), "f8", ArgumentError), ("x", "f8", ArgumentError),
    (1.5, "f8", ArgumentError), (3, "no type", ArgumentError), (3, object, ArgumentTypeError)])
def test_what_cannot_be_made_is_refused(world, shape, dtype, error):
    with pytest.raises(error):
        world.empty(shape, dtype)


def test_where_there_is_no_room_arrays_are_ordinary(world, monkeypatch):
    world.Barrier()
    world.layout  # what the communicator itself needs is there already
    monkeypatch.setattr(mapping, "DIRECTORY", "/nowhere")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        array = world.zeros(1000)
    node = existing_context(world).node
    assert len(caught) == bool(node.local) and array.size == 1000
    for warning in caught:
        assert warning.category is RuntimeWarning and "not registered" in str(warning.message)


@pytest.mark.parametrize("missing", ["directory", "address space"])
def test_nodes_without_shared_memory_use_messages(world, monkeypatch, missing):
    def refuse(*_):
        raise OSError("no address space")

    if missing == "directory":
        monkeypatch.setattr(mapping, "DIRECTORY", "/nowhere")
    elif world.rank == world.size - 1:  # this rank alone
        monkeypatch.setattr(mapping, "map_file", refuse)
    child = world.Dup()
    with child.using(allreduce="ring"):
        out = numpy.empty(70_000)
        child.Allreduce(numpy.full(70_000, 1.0), out)
    assert (out == world.size).all() and not existing_context(child).node.local
    child.Free()


@pytest.mark.parametrize("readv", [True, False])
def test_ranks_without_room_for_slots_do_without(world, monkeypatch, readv):
    monkeypatch.setattr(mapping.SharedMemory, "populate", lambda *_: world.rank % 2 == 1)
    child = world.Dup()
    child.layout  # which makes its shared memory
    if not readv:
        existing_context(child).node.readv = None
    with child.using(allreduce="ring"):
        for count in (1, 100, 70_000):
            out = numpy.empty(count)
            for _ in range(4):
                child.Allreduce(numpy.full(count, world.rank + 1.0), out)
                assert (out == world.size * (world.size + 1) / 2).all()
    child.Free()


def files():
    """Our files in shared memory."""
    return {name for name in os.listdir(mapping.DIRECTORY) if name.startswith("hpccoll-")}


#: What killed jobs have left there before this one.
BEFORE = files()


def test_nothing_is_left_in_the_file_system(world):
    world.zeros(10)
    world.Barrier()
    left = files() - BEFORE
    if left:  # another job may be about to remove its own
        time.sleep(1)
    assert not left & files()
