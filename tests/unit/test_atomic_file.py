"""Files are written whole or not at all."""

import os
import subprocess
import sys

import pytest

from hpccoll.atomic_file import is_writable, open_replacement


def test_the_new_one_takes_the_place_of_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with open_replacement(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file"]


def test_the_old_one_stays_after_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), open_replacement(path) as file:
        file.write("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with open_replacement(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_what_is_no_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open_replacement(pipe) as file:
        file.write("text")
    assert os.read(reader, 9) == b"text" and not pipe.is_file()
    os.close(reader)


def test_standard_output_may_be_a_pipe():
    code = ("from hpccoll.atomic_file import open_replacement\n"
            "with open_replacement('/dev/stdout') as file: file.write('text')")
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert ran.stdout == b"text"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_replaced_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("old")
    tmp_path.chmod(0o555)
    assert not is_writable(tmp_path / "file")
    tmp_path.chmod(0o755)


def test_errors_are_the_systems(tmp_path):
    with pytest.raises(OSError), open_replacement(tmp_path / "none" / "file"):
        pass
    with pytest.raises(OSError), open_replacement(tmp_path):
        pass


def test_what_can_be_written(tmp_path):
    assert is_writable(tmp_path / "new") and not is_writable(tmp_path)
    assert not is_writable(tmp_path / "none" / "new")
