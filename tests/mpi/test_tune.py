"""Tuning on real ranks: one table for all, the same error for all, and what it changes."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from mpi.cases import believe, works
from mpi4py import MPI

import hpccoll
from hpccoll.cli import main
from hpccoll.errors import TuningError
from hpccoll.measure import load, survey
from hpccoll.runtime.attributes import existing_context
from hpccoll.tune.table import Candidate, add_checksum, fingerprint, read, render, write

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
alone = pytest.mark.skipif(WORLD.size == 1, reason="one rank has nothing to choose")
NATIVE, RING = Candidate("native"), Candidate("ring")


@pytest.fixture
def path(tmp_path):
    """A file that all ranks know of."""
    return WORLD.bcast(str(tmp_path / "table.json"))


def machine():
    """What the tests run on."""
    comm = hpccoll.Comm(WORLD.Dup())
    assert comm.layout.size == WORLD.size
    context = existing_context(comm)
    found = fingerprint(context.topology, context.place.oversubscribed)
    comm.Free()
    return found


def on_rank_0(work, *args):
    if WORLD.rank == 0:
        work(*args)
    WORLD.Barrier()


def put(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def tuned_comm(monkeypatch, setting):
    monkeypatch.setenv("HPCCOLL_TUNING", setting)
    return hpccoll.Comm(WORLD.Dup())


def errors_of(comm, calls=2):
    """What every rank is told; the same at every call."""
    for _ in range(calls):
        with pytest.raises(TuningError) as caught:
            works(comm)
        texts = WORLD.allgather(str(caught.value))
        assert len(set(texts)) == 1
    return texts[0]


CURVES = {("allreduce", True): ((8, {NATIVE: 1.0, RING: 2.0}), (4000, {NATIVE: 2.0, RING: 1.0}))}


@alone
def test_a_table_decides(monkeypatch, path, caplog):
    caplog.set_level("DEBUG", "hpccoll")
    mine = machine()
    on_rank_0(write, path, {mine: CURVES, mine._replace(ranks=mine.ranks + 1): {}})
    comm = tuned_comm(monkeypatch, path)
    assert "loaded at the first collective" in comm.explain("allreduce", 4000)
    for _ in range(4):
        works(comm)
        works(comm, 2)
    plans = [key[1] for key in existing_context(comm).plans.entries]
    assert plans == ["ring"]
    assert comm.tuned.source == path and f"measured times of {path}" in caplog.text
    text = " ".join(comm.explain("allreduce", 4000).split())  # wherever lines end
    assert f"ring (measured: 1 s in {path})" in text and f"from {path}" in text
    # Another wrapper of the same communicator knows it too, and a preference wins.
    with hpccoll.Comm(comm).using(allreduce="recursive_doubling") as other:
        works(other)
    assert "recursive_doubling" in [key[1] for key in existing_context(comm).plans.entries]
    comm.Free()


@alone
def test_a_table_for_others_is_not_used(monkeypatch, path, caplog):
    caplog.set_level("DEBUG", "hpccoll")
    mine = machine()
    for changed, reason in (
            (mine._replace(mpi="Another 1.0"),
             "measured on another machine: mpi is 'Another 1.0' there"),
            (mine._replace(ranks=mine.ranks + 1), f"no measurements for {mine.ranks} ranks"),
            (mine._replace(oversubscribed=not mine.oversubscribed),
             "measured on another machine: oversubscribed is")):
        on_rank_0(write, path, {changed: CURVES})
        comm = tuned_comm(monkeypatch, path)
        works(comm)
        assert comm.tuned.source == "" and comm.tuned.note in caplog.text
        assert "no measured times (" in caplog.text
        text = comm.explain("allreduce", 4000)
        assert "rule" in text.splitlines()[0]
        text = " ".join(text.split())
        assert f"none; {path} is not used: it " in text and reason in text
        comm.Free()
        WORLD.Barrier()


@alone
def test_nothing_is_looked_for_when_tuning_is_off(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hpccoll").mkdir()
    put(tmp_path / "hpccoll" / "tuning.json", "broken")
    comm = tuned_comm(monkeypatch, "off")
    works(comm)
    comm.Free()
    monkeypatch.delenv("HPCCOLL_TUNING")
    comm = hpccoll.Comm(WORLD.Dup())
    assert "tuning.json: is corrupt" in errors_of(comm)
    comm.Free()


@alone
@pytest.mark.parametrize("abuse, reason", [
    ("missing", "No such file"), ("directory", "is a directory"), ("empty", "is empty"),
    ("cut off", "is corrupt or truncated"), ("flipped", "checksum does not fit"),
    ("algorithm", "unknown algorithm: allreduce 'rong'"), ("newer", "a newer hpccoll"),
    ("nan", "no number: NaN"), ("negative", "not positive")])
def test_every_abuse_is_the_same_error_on_all_ranks(monkeypatch, path, abuse, reason):
    text = render({machine(): CURVES})
    body = text[:text.index('"checksum"')]
    texts = {"empty": "", "cut off": text[:-20], "flipped": text.replace("4000", "5000"),
             "algorithm": add_checksum(body.replace("ring", "rong")),
             "newer": add_checksum(body.replace('"format": 1', '"format": 2')),
             "nan": add_checksum(body.replace('"ring": 1.0', '"ring": NaN')),
             "negative": add_checksum(body.replace('"ring": 1.0', '"ring": -1.0'))}
    if abuse in texts:
        on_rank_0(put, path, texts[abuse])
    elif abuse == "directory":
        on_rank_0(os.mkdir, path)
    comm = tuned_comm(monkeypatch, path)
    told = errors_of(comm)
    assert path in told and reason in told
    # Once the file is mended, the communicator works.
    if abuse in texts:
        on_rank_0(put, path, text)
        works(comm)
    comm.Free()


@alone
def test_settings_that_differ_are_named(monkeypatch, path):
    on_rank_0(write, path, {})
    for first, last in ((path, "off"), ("off", path), (path, f"{path}2"), ("online", "off")):
        comm = tuned_comm(monkeypatch, last if WORLD.rank == WORLD.size - 1 else first)
        told = errors_of(comm, calls=1)
        assert "HPCCOLL_TUNING differs between ranks: " in told
        assert f"{first!r} on rank" in told and f"{last!r} on rank {WORLD.size - 1}" in told
        comm.Free()


def test_one_rank_needs_no_table(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCCOLL_TUNING", str(tmp_path / "missing.json"))
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup())
    works(comm)
    comm.Free()


def tune(*words):
    return CliRunner().invoke(main, ["tune", *words])


@alone
def test_the_command_measures_writes_and_shows(monkeypatch, path):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    believe(monkeypatch)

    def run(collectives):
        ran = tune("--quick", "--collective", collectives, "-m", "64:1K", "--seconds", "60",
                   "-o", path)
        assert ran.exit_code == 0, ran.output
        return ran

    ran = run("allreduce,barrier")
    if WORLD.rank:
        assert ran.output == ""
    else:
        assert "allreduce" in ran.output and f"written to {path}" in ran.output
    WORLD.Barrier()
    run("bcast")
    table = read(path)
    assert list(table) == [machine()]
    (curves,) = table.values()
    assert {(kind, tuple(nbytes for nbytes, _ in curve)) for kind, curve in curves.items()} == {
        (("allreduce", True), (64, 512, 1024)), (("bcast", True), (64, 512, 1024)),
        (("barrier", True), (0,))}
    for curve in curves.values():
        for _, times in curve:
            assert NATIVE in times and len(times) > 1
    comm = tuned_comm(monkeypatch, path)
    works(comm)
    assert "(measured: " in comm.explain("allreduce", 64)
    comm.Free()
    WORLD.Barrier()
    again = tune("--quick", "--collective", "bcast", "-m", "64:64", "--seconds", "20", "-o", path)
    assert again.exit_code == 0, again.output
    (both,) = read(path).values()
    assert [nbytes for nbytes, _ in both["bcast", True]] == [64, 512, 1024]
    WORLD.Barrier()
    replaced = tune("--quick", "--collective", "bcast", "-m", "64:64", "--seconds", "20",
                    "-o", path, "--replace")
    assert replaced.exit_code == 0, replaced.output
    (only,) = read(path).values()
    assert [nbytes for nbytes, _ in only["bcast", True]] == [64] and len(only) == 3


@pytest.fixture
def busy():
    """Processes of others that use an eighth of the cores or more."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(
        WORLD.rank == 0 and 1 + len(os.sched_getaffinity(0)) // 8)]
    WORLD.Barrier()
    yield
    WORLD.Barrier()
    for loop in loops:
        loop.kill()
        loop.wait()


@alone
def test_nothing_is_saved_beside_a_busy_process_but_by_force(monkeypatch, path, busy):
    most = load.MOST
    believe(monkeypatch)
    monkeypatch.setattr(load, "MOST", most)
    words = ("--quick", "--collective", "allreduce", "-m", "64:64", "--seconds", "3", "-o", path)
    ran = tune(*words)
    said = " ".join(ran.stdout.replace("#", "").split())
    assert ran.exit_code == 1 and not os.path.exists(path)
    reason = re.search(r"nothing saved: other processes used \d+ % of the cores while tune", said)
    assert bool(reason) == (WORLD.rank == 0)
    assert "written to" not in said
    WORLD.Barrier()
    ran = tune(*words, "--force")
    assert ran.exit_code == 0 and list(read(path)) == [machine()]
    assert (f"written to {path}" in ran.stdout) == (WORLD.rank == 0)


@alone
def test_an_old_table_that_is_broken_is_not_overwritten(path):
    on_rank_0(put, path, "precious")
    ran = tune("--quick", "-o", path)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ("is corrupt or truncated" in ran.stderr) == (WORLD.rank == 0)
    with open(path, encoding="utf-8") as file:
        assert file.read() == "precious"


@alone
def test_what_cannot_be_written_is_known_before_anything_is_measured(monkeypatch, path):
    monkeypatch.setattr(survey, "survey", None)
    on_rank_0(put, path, "")
    ran = tune("--quick", "-o", f"{path}/table.json")
    assert ran.exit_code == 2 and ("cannot write it" in ran.stderr) == (WORLD.rank == 0)
