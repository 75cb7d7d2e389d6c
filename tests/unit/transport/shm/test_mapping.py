"""Shared memory of a node: files that cannot be mapped, and what a mapping keeps."""

import gc
import os
import tempfile

import pytest
from mpi4py import MPI

from hpccoll.transport.shm import mapping


def test_a_file_that_cannot_be_mapped_is_no_room(monkeypatch):
    """An error of one rank alone would leave the others waiting for it."""
    def refuse(*_):
        raise OSError("no address space")

    assert mapping.share(MPI.COMM_SELF, 100) is not None
    monkeypatch.setattr(mapping, "map_file", refuse)
    assert mapping.share(MPI.COMM_SELF, 100) is None


def test_a_full_file_system_is_no_bus_error(monkeypatch):
    def full(file, offset, nbytes):
        raise OSError(28, "No space left on device")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert mapping.share(MPI.COMM_SELF, 100) is None
    assert os.listdir("/proc/self/fd") == before


def test_where_files_need_a_name_it_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(mapping, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # refused, as on NFS
    shared = mapping.share(MPI.COMM_SELF, 100)
    assert shared is not None and shared.parts[0].nbytes == 100 and not list(tmp_path.iterdir())


def test_an_error_of_the_system_is_raised():
    with pytest.raises(OSError, match="Bad file descriptor"):
        mapping.map_file(-1, 4096)


def _mapped(name):
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum(name in line for line in file)


def test_memory_keeps_no_descriptor_and_lives_as_long_as_its_arrays():
    with tempfile.NamedTemporaryFile(dir=mapping.DIRECTORY, prefix="hpccoll-test-") as file:
        file.truncate(3 * 4096)
        before = len(os.listdir("/proc/self/fd"))
        first, last = (mapping.map_file(file.fileno(), 4096, start) for start in (0, 8192))
        assert len(os.listdir("/proc/self/fd")) == before
        first[:] = 1
        last[5] = 7
        assert os.pread(file.fileno(), 6, 8192) == bytes(5) + b"\7"
        part = first.view("i8")[2:3]
        del first, last
        gc.collect()
        assert part[0] == 0x0101010101010101 and _mapped(file.name) == 1
        del part
        gc.collect()
        assert _mapped(file.name) == 0


@pytest.mark.parametrize("kept", [True, False])
def test_shared_memory_of_many_communicators_keeps_no_descriptors(kept):
    before, made = len(os.listdir("/proc/self/fd")), []
    for _ in range(20):
        one = mapping.share(MPI.COMM_SELF, 5000)
        assert one.populate(0, 4096, 904) and one.parts[0].nbytes == 5000
        made.append(one if kept else None)
    assert len(os.listdir("/proc/self/fd")) == before and len(made) == 20
