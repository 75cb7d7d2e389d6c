"""``hpccoll status``: which jobs it reads, and what it says of those that it cannot."""

import json
import mmap
import os
import time

import numpy
import pytest

pytest.importorskip("click")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.guard.comm_table import CommTable
from hpccoll.guard.job_status import SLOT_BYTES, pack_identity
from hpccoll.guard.rank_status import waiting_status
from hpccoll.machine.processes import this_process
from hpccoll.runtime.events.call_log import LOG_BYTES, NUMBER, Log
from hpccoll.runtime.planning.description import Description
from hpccoll.tools import status
from hpccoll.transport.shm import job_file, mapping
from hpccoll.transport.shm.job_file import JobFile

CALL = Description("allreduce", "9", "f8", "sum", algorithm="ring")
PART = -(-LOG_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def begin(log, number):
    log.describe(CALL.call_hash(), CALL)
    log.write_start(number, CALL.call_hash(), time.monotonic_ns() - 3 * 10 ** 9)
    log.words[NUMBER] = number


@pytest.fixture
def job(monkeypatch, tmp_path):
    """A job of two ranks, both of which are this process; rank 1 is one call behind."""
    monkeypatch.setattr(job_file, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(status, "JOB_FILE", f"{tmp_path}/{mapping.PREFIX}job-")
    path = tmp_path / "logs"
    file = mapping.open_private(str(path), os.O_CREAT)
    os.truncate(file, 2 * PART)
    logs = [Log(mapping.map_file(file, LOG_BYTES, PART * rank)) for rank in range(2)]
    for rank, number in enumerate((7, 6)):
        begin(logs[rank], number)
    logs[0].publish_status(waiting_status("allreduce ring", 7, 1, (1,), "solve.py:3"))
    files = [JobFile("key", SLOT_BYTES, 3, pack_identity(rank, this_process()))
             for rank in range(2)]
    for rank, one in enumerate(files):
        CommTable(one.mine[LOG_BYTES:].data).add(os.dup(file), rank, 2, rank, "grid")
    yield files
    os.close(file)
    for one in files:
        for entry in CommTable(one.mine[LOG_BYTES:].data).entries():
            os.close(entry.file)
        os.close(one.file)


@pytest.mark.parametrize("which", ["", "key", str(os.getpid()), str(os.getppid())],
                         ids=["all", "key", "rank", "parent"])
def test_a_waiting_rank_and_the_one_it_waits_for(job, which):
    found, = status.read_jobs(which)
    first, second = found.ranks
    assert first.activity.peers == (1,) and first.comm == second.comm == "grid"
    assert 3 <= first.seconds < 30 and second.activity.begun == 6
    assert str(first).startswith(
        "rank 0 waits for rank 1 in round 1 of call 7, allreduce ring at solve.py:3 (of grid), for")
    assert found.verdict == ["rank 1 is in the program, not in call 7 (one call behind); rank 0 "
                             "waits in call 7 of grid, allreduce ring"]


def test_the_command(job):
    done = CliRunner().invoke(main, ["status"])
    first = "job key: 2 ranks on this node\n  rank 0 "
    assert done.exit_code == 0 and done.stdout.startswith(first)
    assert done.stdout.splitlines()[-1].startswith("rank 1 is in the program")
    data, = json.loads(CliRunner().invoke(main, ["status", "--json", "-"]).stdout)
    assert data["format"] == "hpccoll status 1" and [one["rank"] for one in data["ranks"]] == [0, 1]


def test_ranks_that_disagree(job):
    other = CALL._replace(operator="max")
    with open(f"/proc/self/fd/{CommTable(job[0].mine[LOG_BYTES:].data).entries()[0].file}",
              "r+b") as file:
        log = Log(mapping.map_file(file.fileno(), LOG_BYTES, PART))
    log.describe(other.call_hash(), other)
    log.write_start(7, other.call_hash())
    log.words[NUMBER] = 7
    verdict, = status.read_jobs()[0].verdict
    assert verdict.startswith("grid: ranks disagree on operator in blocking call 7:\n  rank 0: sum")


def test_a_job_of_another_version(job):
    start = job_file.slot_start(1, SLOT_BYTES) + SLOT_BYTES
    os.pwrite(job[0].file, numpy.zeros(512, "u1"), start)
    assert "another version of hpccoll" in status.read_jobs()[0].verdict[0]
    with pytest.raises(HpccollError, match="job key runs another version"):
        status.read_jobs("key")


def test_no_job(job):
    with pytest.raises(ArgumentError, match="'1x' is no process or job with ranks of user"):
        status.read_jobs("1x")
    assert CliRunner().invoke(main, ["status", "1x"]).exit_code == 2


def test_the_file_of_another_user_is_refused(job):
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(job[0].path, 12345, -1)
    with pytest.raises(PermissionError, match="of user 12345 is no file for"):
        status.read_jobs("key")
