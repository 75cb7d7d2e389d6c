"""Keeping times: jobs that add to a table at the same time take turns, where they can."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpccoll.errors import TuningError
from hpccoll.tune import store
from hpccoll.tune.table import Candidate, Fingerprint, read, write

CURVES = {("bcast", True): ((64, {Candidate("native"): 1e-6}),)}


def machine(ranks):
    return Fingerprint("MPICH 5.0.2", "a processor x 2", ranks, str(ranks), False)


def allreduce(**seconds):
    return {("allreduce", True): ((64, {Candidate(name): time for name, time in seconds.items()}),)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "tuning.json"


def test_a_table_is_begun_and_added_to(path):
    assert store.load_existing(path) == {}
    for ranks in (2, 3):
        store.add(path, machine(ranks), CURVES)
    assert store.load_existing(path) == read(path) == {machine(2): CURVES, machine(3): CURVES}
    path.write_text("{")
    with pytest.raises(TuningError, match="corrupt"):
        store.add(path, machine(4), CURVES)
    assert path.read_text() == "{"


def test_adding_again_averages_or_begins_anew(path):
    scan = {("scan", True): CURVES["bcast", True]}
    slow = {("bcast", True): ((64, {Candidate("native"): 3e-6}),)}
    mean = {("bcast", True): ((64, {Candidate("native"): 2e-6}),)}
    store.add(path, machine(2), {**CURVES, **scan})
    assert store.add(path, machine(2), slow) == (mean, [])
    assert read(path) == {machine(2): {**mean, **scan}}
    assert store.add(path, machine(2), slow, replace=True) == (slow, [])
    assert read(path) == {machine(2): {**slow, **scan}}
    wrong = [("scan", Candidate("native"))]
    store.add(path, machine(2), slow, wrong)
    assert read(path) == {machine(2): slow}


def test_a_time_that_differs_too_much_from_the_old_one_is_not_added(path):
    """A machine that others use makes times longer: a good one stays, until it is replaced."""
    store.add(path, machine(2), allreduce(native=1e-6, ring=2e-6, rabenseifner=3e-6))
    curves, stayed = store.add(path, machine(2), allreduce(native=300e-6, ring=600e-6))
    assert curves == allreduce(native=1e-6, ring=2e-6, rabenseifner=3e-6)
    assert stayed == [("allreduce", 64, Candidate("native"), 1e-6, 300e-6),
                      ("allreduce", 64, Candidate("ring"), 2e-6, 600e-6)]
    curves, stayed = store.add(path, machine(2), allreduce(native=3e-6, ring=0.5e-6))
    times = curves["allreduce", True][0][1]
    assert times[Candidate("native")] == times[Candidate("ring")] == 2e-6
    assert [each.candidate.name for each in stayed] == ["ring"]
    assert store.add(path, machine(2), allreduce(native=300e-6), replace=True) == (
        allreduce(native=300e-6), [])


def test_no_entry_of_many_jobs_is_lost(path):
    code = (
        "import sys\n"
        "from hpccoll.tune import store\n"
        "from hpccoll.tune.table import Candidate, Fingerprint\n"
        "store.PATIENCE = 600.0\n"
        "job, path = int(sys.argv[1]), sys.argv[2]\n"
        "curves = {('bcast', True): ((64, {Candidate('native'): 1e-6}),)}\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
        "for ranks in range(10 * job, 10 * job + 10):\n"
        "    store.add(path, Fingerprint('MPI', 'processor', ranks, str(ranks), False), curves)\n")
    jobs = [subprocess.Popen([sys.executable, "-c", code, str(job), str(path)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             cwd=Path(store.__file__).parents[2]) for job in range(4)]
    for job in jobs:
        job.stdout.readline()
    for job in jobs:  # all of them start when all of them are there
        job.stdin.close()
    for job in jobs:
        job.stdout.close()
        assert job.wait(60) == 0
    assert sorted(found.ranks for found in read(path)) == list(range(40))


def test_what_another_job_writes_while_this_one_waits_stays(path, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 600.0)
    with store.lock_table(path) as mine:
        assert mine
        other = threading.Thread(target=store.add, args=(path, machine(2), CURVES))
        other.start()
        other.join(0.1)
        assert other.is_alive() and not path.exists()
        write(path, {machine(3): CURVES})
    other.join(60)
    assert read(path) == {machine(3): CURVES, machine(2): CURVES}


def test_a_lock_holds_for_the_table_behind_a_link(path, tmp_path):
    (tmp_path / "link.json").symlink_to(path)
    with store.lock_table(tmp_path / "link.json"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "PATIENCE", 0.0)
        with store.lock_table(path) as mine:
            assert not mine


def test_who_keeps_the_lock_for_ever_is_not_waited_for(path, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    with store.lock_table(path):
        store.add(path, machine(2), CURVES)
    assert read(path) == {machine(2): CURVES}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(path, monkeypatch, number):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    store.add(path, machine(2), CURVES)
    assert read(path) == {machine(2): CURVES}


def test_a_lock_that_cannot_be_made(path):
    lock = path.with_name(".tuning.json.lock")
    lock.mkdir(parents=True)
    store.add(path, machine(2), CURVES)
    lock.rmdir()
    os.mkfifo(lock)  # opening one must not wait for whoever is at the other end
    store.add(path, machine(3), CURVES)
    assert read(path) == {machine(2): CURVES, machine(3): CURVES}
    path.parent.joinpath("file").write_text("")
    with pytest.raises(TuningError, match="cannot write it"):
        store.add(path.parent / "file" / "tuning.json", machine(2), CURVES)


def test_a_lock_of_another_user_is_taken_by_reading(path, monkeypatch):
    opened = os.open

    def refuse(name, flags, *mode):
        if flags & os.O_CREAT and str(name).endswith(".lock"):
            raise PermissionError(errno.EACCES, "another user's")
        return opened(name, flags, *mode)

    with store.lock_table(path):
        pass
    monkeypatch.setattr(os, "open", refuse)
    with store.lock_table(path) as mine:
        assert mine
