"""Arrivals of a group's ranks in shared memory."""

import os

import pytest

pytest.importorskip("torch")
store_barrier = pytest.importorskip("hpccoll.torch.process_group.store_barrier")


class Alone:
    """A node of two ranks, of which this is the first and the other does what this does."""

    rank, size = 0, 2

    def bcast(self, value):
        return value

    def allreduce(self, value, op):
        return value


def test_memory_is_shared():
    memory = store_barrier._map_shared(Alone(), 128)
    assert memory is not None and len(memory) == 128 and not any(memory)


def test_a_full_file_system_is_no_bus_error(monkeypatch):
    """Pages are reserved when the file is made, as in transport/shm and training/shard."""
    def full(file, offset, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert store_barrier._map_shared(Alone(), 128) is None
