"""Shared memory of a node: files that cannot be mapped."""

from mpi4py import MPI

from hpccoll.transport.shm import mapping


def test_a_file_that_cannot_be_mapped_is_no_room(monkeypatch):
    """An error of one rank alone would leave the others waiting for it."""
    def refuse(*_):
        raise OSError("no address space")

    assert mapping.share(MPI.COMM_SELF, 100) is not None
    monkeypatch.setattr(mapping.mmap, "mmap", refuse)
    assert mapping.share(MPI.COMM_SELF, 100) is None
