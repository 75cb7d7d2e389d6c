"""The file of a job: processes find each other's memory there, and its name goes."""

import fcntl
import os

import pytest

from hpccoll.transport.shm import job_file as module
from hpccoll.transport.shm import mapping
from hpccoll.transport.shm.job_file import FAILURE, JobFile


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes a file as one process of a job of two."""
    monkeypatch.setattr(module, "DIRECTORY", str(tmp_path))
    return lambda name, expected=2: JobFile("key", 64, expected, name)


def test_processes_find_each_other(make, tmp_path):
    first = make(b"first")
    assert len(list(tmp_path.iterdir())) == 1 and [name for name, _ in first.new()] == [b"first"]
    first.mine[3] = 7
    second = make(b"second")
    assert not list(tmp_path.iterdir())  # all have come
    assert [(name, memory[3]) for name, memory in second.new()] == [(b"first", 7), (b"second", 0)]
    assert [name for name, _ in first.new()] == [b"second"] and not first.new()
    second.words[FAILURE] = 1
    assert first.words[FAILURE] == 1


def test_file_keeps_its_name_where_the_number_of_processes_is_unknown(make, tmp_path):
    files = [make(name, expected=-1) for name in (b"first", b"second")]
    assert len(list(tmp_path.iterdir())) == 1
    for file in files:
        file.remove()  # also where another one has removed it
    assert not list(tmp_path.iterdir())


def _strange(path, kind):
    """Make a file of this name as another user could."""
    if kind == "link":
        path.symlink_to("/dev/null")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(bytes(1 << 16))
        path.chmod(0o666 if kind == "mode" else 0o600)
    if kind == "owner":
        os.chown(path, 12345, -1)


@pytest.mark.parametrize("kind, text", [
    ("mode", "rw-rw-rw-"), ("owner", "user 12345"), ("fifo", "prw"), ("link", "lrw")])
def test_what_another_user_may_write_is_refused(make, tmp_path, kind, text):
    """Its lock could be held for ever, and its words be anything."""
    if kind == "owner" and os.geteuid():
        pytest.skip("only root can give a file away")
    path, before = tmp_path / f"{mapping.PREFIX}job-key", os.listdir("/proc/self/fd")
    _strange(path, kind)
    with pytest.raises(PermissionError, match=text) as caught:
        make(b"first")
    assert str(path) in str(caught.value) and os.listdir("/proc/self/fd") == before


def test_a_process_that_keeps_the_lock_is_waited_for_some_seconds(make, monkeypatch):
    """It was stopped, perhaps; the next one goes on without it."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    first, before = make(b"first"), os.listdir("/proc/self/fd")
    fcntl.flock(first.file, fcntl.LOCK_EX)
    with pytest.raises(TimeoutError, match=r"for 0\.05 s; end that process.*hpccoll-job-key"):
        make(b"second")
    assert os.listdir("/proc/self/fd") == before
    fcntl.flock(first.file, fcntl.LOCK_UN)
    assert [name for name, _ in make(b"second").new()] == [b"first", b"second"]


def test_no_room_is_an_error_and_no_signal(make, monkeypatch):
    def refuse(*_):
        raise OSError("no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no room"):
        make(b"first")
    assert os.listdir("/proc/self/fd") == before
