"""Files of dead jobs in shared memory: found, and removed where no process can be using them."""

import mmap
import os
import subprocess
import sys
import time

import pytest

from hpccoll.tools.doctor import shm_cleanup as module
from hpccoll.tools.doctor.shm_cleanup import WHOLE_MACHINE, YOUNG, leftovers, remove

OURS, OPEN_MPI, OTHERS = "hpccoll-0123456789abcdef", "sm_segment.host.0.1.0", "somebody-elses"


@pytest.fixture
def place(tmp_path):
    """A directory of shared memory with old files, and /proc of a machine without processes."""
    directory, process = tmp_path / "shm", tmp_path / "proc"
    directory.mkdir()
    (process / "self" / "ns").mkdir(parents=True)
    (process / "self" / "ns" / "pid").symlink_to(WHOLE_MACHINE)
    for name in (OURS, OPEN_MPI, OTHERS):
        (directory / name).write_bytes(b"x" * 8192)
    return directory, process


def found(place, after=YOUNG + 1):
    directory, process = place
    return leftovers(str(directory), str(process), time.time() + after)


def test_files_that_nobody_uses_are_found_with_their_size(place):
    assert [(os.path.basename(one.path), one.owner, one.sure) for one in found(place)] == [
        (OURS, "hpccoll", True), (OPEN_MPI, "Open MPI", True)]
    assert all(one.nbytes >= 8192 for one in found(place))


def test_young_files_and_those_of_others_are_not(place, monkeypatch):
    assert not found(place, YOUNG - 5)
    monkeypatch.setattr(module.os, "getuid", lambda: 12345)
    assert not found(place)


def test_links_and_folders_are_not(place):
    directory, _ = place
    (directory / "hpccoll-link").symlink_to(directory / OTHERS)
    (directory / "hpccoll-folder").mkdir()
    assert len(found(place)) == 2


def test_where_not_all_processes_are_seen_only_ours_are_sure(place):
    _, process = place
    (process / "self" / "ns" / "pid").unlink()
    (process / "self" / "ns" / "pid").symlink_to("pid:[4026532177]")
    assert [one.sure for one in found(place)] == [True, False]
    assert [os.path.basename(one.path) for one in remove(found(place))] == [OURS]
    assert [os.path.basename(one.path) for one in found(place)] == [OPEN_MPI]


def test_they_are_removed_and_nothing_else(place):
    directory, _ = place
    assert len(remove(found(place))) == 2 and not found(place)
    assert [path.name for path in directory.iterdir()] == [OTHERS]
    assert remove([module.Leftover(str(directory / "gone"), 0, "hpccoll", True)]) == []


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_files_of_living_processes_are_kept(place, how):
    directory, _ = place
    with open(directory / OURS, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0) if how == "mapped" else None
        if how == "mapped":
            file.close()
        there = leftovers(str(directory), "/proc", time.time() + YOUNG + 1)
        assert [os.path.basename(one.path) for one in there] == [OPEN_MPI]
        if mapping is not None:
            mapping.close()
    assert len(leftovers(str(directory), "/proc", time.time() + YOUNG + 1)) == 2


@pytest.mark.slow
def test_files_of_other_living_processes_are_kept(place):
    directory, _ = place
    code = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); " \
           "f.close(); print('mapped', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, str(directory / OURS)],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"mapped\n"
        assert [one.owner for one in leftovers(str(directory), "/proc", time.time() + YOUNG + 1)
                ] == ["Open MPI"]
        child.communicate(b"\n")
    assert len(leftovers(str(directory), "/proc", time.time() + YOUNG + 1)) == 2
