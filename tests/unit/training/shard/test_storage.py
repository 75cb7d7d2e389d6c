"""Where vectors lie."""

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.shard.storage import InMemory, MappedFiles


@pytest.mark.parametrize("count", (0, 1, 5000))
@pytest.mark.parametrize("dtype", ("f4", "f8"))
def test_vectors_are_zero_and_can_be_written(tmp_path, count, dtype):
    for storage in InMemory(), MappedFiles(tmp_path / "new" / "folder"):
        vectors = [storage.zeros(count, dtype) for _ in range(2)]
        assert all(vector.dtype == dtype and vector.shape == (count,) and not vector.any()
                   for vector in vectors)
        vectors[0][:] = 3
        assert not vectors[1].any() and (vectors[0] == 3).all()


def test_mapped_vectors_lie_in_a_file_that_nobody_else_sees(tmp_path):
    vector = MappedFiles(tmp_path).zeros(10, "f4")
    assert isinstance(vector, numpy.memmap) and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="storage: .*file"):
        MappedFiles(tmp_path / "file")


def test_a_disk_that_is_full_is_an_error_at_once(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        MappedFiles(tmp_path).zeros(10, "f4")
