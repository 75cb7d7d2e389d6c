"""Tools that read what a job left: failures, profiles, tuning reports, other installations."""

import json
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import hpccoll
from hpccoll.machine.launcher import explain_single_ranks
from hpccoll.measure.noise import Doubt
from hpccoll.measure.profiling.profile import LINES, CallRow, Profile, rows_of
from hpccoll.tools import tuning_report
from hpccoll.tools.bench.provenance import hidden_install
from hpccoll.tools.diagnose import diagnose, heading, read, table
from hpccoll.tools.failures import KNOWN, explain_lines
from hpccoll.tools.profile import draw
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate, Disagreement, Fingerprint

# Why jobs hung: recorded hangs of real jobs, each with its verdict, and records made up
RECORDS = Path(__file__).parent / "records"
#: What happened, and words that the verdict begins with, or must have.
VERDICTS = {
    "away": ("Rank 1 has not started call 11 of MPI_COMM_WORLD, allreduce", "in which ranks 0,2 "
             "wait; it is in the program at hang.py:20, and its last call was 10."),
    "slow": ("Rank 1 has not started call 11", "Before that, rank 1 was last in 9 of 10 calls, on "
                                               "average 32.4 ms after the first rank."),
    "killed": ("Rank 2 was killed before call 12 of MPI_COMM_WORLD, allreduce", "ranks 0-1 wait "
               "for it."),
    "stopped": ("Rank 2 is stopped, by a signal or a debugger; its last call was 10;",
                "ranks 0-1 wait in call 11"),
    "left": ("Rank 1 has ended its program before call 11", "in which ranks 0,2 wait"),
    "native": ("Rank 0 has not started call 11 of MPI_COMM_WORLD, bcast", "in which ranks 1-2 "
               "wait; it is in the program at hang.py:30"),
    "differs": ("Ranks disagree on the collective in call 11: rank 2 made bcast", "at hang.py:26; "
                "ranks 0-1 made allreduce"),
    "operator": ("Ranks disagree on the operator in call 11: rank 1 made allreduce, count 1000, f8,"
                 " max", "ranks 0,2 made allreduce, count 1000, f8, sum")}


@pytest.mark.parametrize("way", VERDICTS)
def test_recorded_hangs_are_understood(way):
    start, words = VERDICTS[way]
    found = diagnose(read(RECORDS / way))
    assert found.verdict.startswith(start) and words in found.verdict
    assert found.ranks == 3 and len(found.comms[0].ranks) == 3
    json.dumps(found.as_json())


def test_every_record_has_a_verdict():
    assert {folder.name for folder in RECORDS.iterdir()} == set(VERDICTS)


def test_a_table_fits_its_columns():
    for way in VERDICTS:
        found = diagnose(read(RECORDS / way))
        for width in (80, 100):
            assert all(len(line) <= width for line in table(found.comms[0], width))
        assert heading(found).startswith("3 ranks, records of ")


@pytest.mark.parametrize("silent", [(0,), (1,), (0, 1), (1, 2)])
def test_ranks_that_wrote_nothing_are_seen_by_the_others(tmp_path, silent):
    shutil.copytree(RECORDS / "away", tmp_path / "records")
    for rank in silent:
        next((tmp_path / "records").glob(f"*rank{rank:05}.json")).unlink()
    found = diagnose(read(tmp_path / "records"))
    assert found.silent == list(silent)
    assert found.verdict.startswith("Rank 1 has not started call 11")


def doing(rank, state, begun, completed, peers=()):
    return {"rank": rank, "state": state, "begun": begun, "completed": completed, "call": "scan",
            "site": "", "round": 0, "peers": list(peers), "seconds": 0.1}


def failure(reason, call=None):
    return {"number": 0, "tag": 7 * bool(call), "site": "", "when": "12:00:00", "reason": reason,
            "fields": call, "heard": False}


def file_of(rank, everybody, calls=(), report=None, why="SIGUSR1"):
    return {"why": why, "when": 5.0 + rank, "rank": rank, "ranks": len(everybody),
            "site": "program.py:1",
            "communicators": [{"id": "c", "name": "WORLD", "rank": rank,
                               "world_ranks": list(range(len(everybody))), "doing": everybody,
                               "records": {str(rank): {"calls": list(calls), "story": report}},
                               "requests": []}]}


def call(number, **fields):
    return {"number": number, "start": float(number), "end": None, **fields}


def test_nobody_waits():
    everybody = [doing(rank, "in no wait", 7, 7) for rank in range(3)]
    found = diagnose([file_of(rank, everybody) for rank in range(3)])
    assert found.verdict == "No rank waits in a collective of hpccoll, and no rank has failed."


def test_all_wait_for_each_other():
    everybody = [doing(rank, "waiting", 7, 6, [(rank + 1) % 3]) for rank in range(3)]
    found = diagnose([file_of(rank, everybody) for rank in range(3)])
    assert found.verdict == ("Waiting ranks: rank 0 for rank 1 in round 0; rank 1 for rank 2 "
                             "in round 0; rank 2 for rank 0 in round 0.")


def test_a_rank_that_is_behind_in_another_call():
    everybody = [doing(0, "waiting", 7, 6, [1]), doing(1, "waiting", 6, 5, [0])]
    found = diagnose([file_of(rank, everybody) for rank in range(2)])
    assert "Rank 1 is behind: it is in call 6, scan at program.py:1; rank 0 waits" in found.verdict


@pytest.mark.parametrize("begun, completed, when", [
    (2, 2, "before call 3 of WORLD, scan"), (3, 2, "in call 3 of WORLD, scan"),
    (3, 3, "after call 3")])
def test_a_rank_that_was_killed(begun, completed, when):
    everybody = [doing(0, "waiting", 3, 2, [1]), doing(1, "killed", begun, completed)]
    found = diagnose([file_of(0, everybody)])
    assert found.verdict == f"Rank 1 was killed {when}: rank 0 waits for it."


def test_without_a_cause_the_first_sentence_stands_for_itself():
    everybody = [doing(0, "waiting", 3, 2, [1]), doing(1, "failed", 3, 2)]
    calls = [[dict(call(n), start=n + 0.5 * rank) for n in (1, 2, 3)] for rank in range(2)]
    report = failure("CollectiveTimeout: no progress")
    found = diagnose([file_of(rank, everybody, calls[rank], report if rank == 0 else None)
                      for rank in range(2)])
    assert found.verdict == ("Rank 1 was last in 3 of 3 calls, on average 500 ms after the first "
                             "rank. "
                             "The first failure was on rank 0, at 12:00:00: CollectiveTimeout: no "
                             "progress")


def test_half_against_half_blames_nobody():
    everybody = [doing(rank, "waiting", 1, 0, [1 - rank]) for rank in range(2)]
    files = [file_of(rank, everybody, [call(1, collective="bcast", root=str(rank))])
             for rank in range(2)]
    assert diagnose(files).verdict.startswith(
        "Ranks disagree on the root in call 1: rank 0 made bcast, root 0")


def test_pending_calls_that_differ():
    """No log has them; the failures tell of them."""
    everybody = [doing(rank, "failed", 1, 1) for rank in range(2)]
    files = [file_of(rank, everybody, report=failure("", [name, "", "", "", "", "", ""]))
             for rank, name in enumerate(("ibcast", "iscan"))]
    assert diagnose(files).verdict.startswith(
        "Ranks disagree on the collective in a nonblocking or persistent call: rank 0 made ibcast; "
        "rank 1 made iscan.")


def test_a_rank_on_another_machine_that_wrote_nothing():
    everybody = [doing(0, "waiting", 3, 2, [1]), doing(1, "not heard of", -1, -1)]
    assert "Rank 1 has not reported" in diagnose([file_of(0, everybody)]).verdict


def test_types_that_a_rank_does_not_know_are_no_difference():
    everybody = [doing(rank, "waiting", 1, 0, [1 - rank]) for rank in range(2)]
    files = [file_of(0, everybody, [call(1, collective="bcast", dtype="f8")]),
             file_of(1, everybody, [call(1, collective="bcast")])]
    assert "disagree" not in diagnose(files).verdict


# Failures known by what they print: as jobs printed them, and in the page
PAGE = Path(__file__).resolve().parents[3] / "docs" / "api" / "launch-errors.md"
#: Lines as they were printed, here or in public reports, and a part of the remedy.
PRINTED = {
    "MPICH ERROR [Rank 0] [job id 410301.1] [nid005414] - Abort(-1) (rank 0 in comm 0): "
    "MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL library is not linked":
        "craype-accel",
    "check_MPIR_CVAR_PMI_VERSION(167):  Runtime environment uses unsupported PMI version PMIx. "
    "Aborting.": "srun --mpi=pmi2",
    "hpccoll: bench: launcher does not match the MPI library: mpiexec started 4 processes, Open "
    "MPI 5.0.8 runs each as a job of 1 rank; use the mpiexec of mpi4py's MPI library":
        "srun --mpi=pmi2",
    "    /opt/openmpi/share/openmpi/help-mpi-runtime.txt: No such file or directory":
        "srun --mpi=pmix",
    "srun: error:  mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx "
    "library": "--launcher mpirun",
    "srun: error: task 2 launch failed: Unspecified error": "--mpi=pmi2",
    "srun: error: cannot find mpi plugin for mpi/pmix": "srun --mpi=list",
    "0: but OMPI was not built with SLURM's PMI support and therefore cannot": "srun --mpi=pmix",
    "MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable if it is not a "
    "singleton case.": "libpmi2.so",
    "slurmstepd: error: mpi/pmi2: value not properly terminated in client request":
        "UCX_NET_DEVICES",
    "MPIDI_POSIX_comm_bootstrap(199)....: Out of memory": "/dev/shm/mpich_shm",
    "There are not enough slots available in the system to satisfy the 8": "--oversubscribe",
    "prterun has detected an attempt to run as root.": "--allow-run-as-root",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)": "--shm-size",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.": "--mem",
    "mpiexec noticed that process rank 1 exited on signal 9 (Killed).": "the first error above",
    "hpccoll.errors.contract.ContractError: ranks disagree on count": "help(hpccoll.errors)",
    "RuntimeError: cannot load MPI library": "MPI module"}


@pytest.mark.parametrize("line", PRINTED)
def test_a_line_that_a_job_printed(line):
    found, = explain_lines(["before\n", line + "\n", line + "\n", "after\n"])
    assert found.level == "error" and PRINTED[line] in found.remedy
    assert len(found.what) < 300


def test_every_known_text_has_a_line_here():
    assert all(any(known.text in line for line in PRINTED) for known in KNOWN)
    assert len(PRINTED) == len(KNOWN)


@pytest.mark.parametrize("library", ["MPICH 5.0.2", "Open MPI 5.0.8", "Intel MPI 2021"])
def test_our_own_message_of_lone_ranks_is_known(library):
    """Fails where the message is written anew and the table is not."""
    problem, _ = explain_single_ranks(4, "srun --mpi=none", library)
    found, = explain_lines([f"hpccoll: {problem}\n"])
    assert "a job of one rank" in found.what


def test_output_of_a_job_that_is_well_says_nothing():
    assert list(explain_lines(["4 ranks, all is well\n", ""])) == []


def test_the_page_has_the_same_table():
    text = PAGE.read_text(encoding="utf-8")
    for known in KNOWN:
        row = next((line for line in text.splitlines() if f"`{known.text}`" in line), None)
        assert row is not None, known.text
        assert known.cause.split(",")[0] in row.replace("`", ""), row


# Profiles as tables and pictures
LONGEST = "knomial k=16, compiled"


def made(count, **more):
    """A profile of so many kinds of calls, with names and numbers as long as they get."""
    titles = [f"reduce_scatter_block{suffix}" for suffix in ("", "_init")]
    rows = [CallRow(title, 1023 << 20, 1023 << 20, "f8 sum", f"{LONGEST} {number}", (12345678,),
                    123.4, 61.7, 12.345, 10.25, 3.0, **more)
            for number in range(count) for title in titles[:1 + number % 2]][:count]
    return Profile(1000, 500.0, rows_of(rows), tuple(rows))


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("count", [0, 1, 2, LINES + 3])
def test_profile_a_table_fits_its_columns(count, width):
    text = made(count).lines(width)
    assert max(map(len, text)) <= width
    assert "1000 ranks: collectives took" in "\n".join(text)
    assert any("more rows" in line for line in text) == (count > LINES)


def test_columns_that_do_not_fit_are_named():
    narrow, wide = (" ".join(made(1).lines(width)) for width in (80, 140))
    assert "vs native" in narrow and "12.35" not in narrow
    assert "--json also has column max/mean." in narrow
    assert "12.35" in wide and "--json" not in wide


@pytest.mark.parametrize("count", [0, 3, 40])
def test_a_picture_is_drawn_of_any_number_of_rows(tmp_path, count):
    draw(made(count), tmp_path / "profile.svg")
    assert "</svg>" in (tmp_path / "profile.svg").read_text()


# What a tuning says to people: lines of sizes, a verdict, and what a busy machine spoilt
MACHINE = Fingerprint("MPICH 5.0.2", "AMD EPYC x 2", 4, "4", False)
NATIVE, RING, LONG = (Candidate("native"), Candidate("ring"),
                      Candidate("recursive_multiplying", (("k", 4),)))
CURVES = {("allreduce", True): tuple(
    (8 << n, {NATIVE: 4e-6, RING: 2e-6 if n < 3 else 5e-6, LONG: 9e-6}) for n in range(6)),
    ("allreduce", False): ((8, {NATIVE: 1e-6, LONG: 5e-7}),),
    ("barrier", True): ((0, {NATIVE: 1e-6}),)}


def shown(width=100, full=False, doubtful=(), curves=CURVES, hold=True):
    return tuning_report.lines(MACHINE, tuning_report.fastest_candidates(curves, JobTimes(curves)),
                               doubtful, width, full, hold=hold)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_it_fits(width):
    lines = shown(width, doubtful=[Doubt("bcast", 1 << 20, 93.0)])
    assert max(map(len, lines)) <= width
    assert any("recursive_multiplying" in line for line in lines)


def test_sizes_with_one_winner_share_a_line():
    rows = [line for line in shown() if not line.startswith("#")]
    assert len(rows) == 1 + 4
    assert rows[1].split() == ["*", "allreduce", "8", "B", "-", "32", "B", "ring", "2", "us", "4",
                               "us", "2.00"]
    assert "allreduce, ordered" in "\n".join(rows) and "barrier" in rows[4]
    assert len([line for line in shown(full=True) if not line.startswith("#")]) == 1 + 8


def test_the_verdict_and_what_was_spoilt():
    many = [Doubt("bcast", 1 << 20, 93.4)] * 8
    text = "\n".join(shown(200, doubtful=many))
    assert "fastest at 4 of 8 points, 2.0x as fast as MPICH there; MPICH at the others" in text
    assert "not saved: 8 points disturbed by other processes; repeat it when the machine is " \
        "idle; --full lists them" in text
    text = "\n".join(shown(200, True, many))
    assert "bcast 1 MiB (native took 93 times as long as the fastest)" in text
    assert "and 2 more" in text
    text = "\n".join(shown(200, True, [Doubt("alltoall", 64, late=4.05), Doubt(
        "scan", 8, late=9.6, label="ring")]))
    assert "1 point disturbed" in text
    assert "alltoall 64 B (4 times as long as a larger size)" in text
    assert "1 time of one candidate, scan 8 B ring (10 times as long as a larger size)" in text
    # Times of a busy machine are shown, and nothing is concluded from them.
    text = "\n".join(shown(200, doubtful=many, hold=False))
    assert "ring" in text and "fastest at" not in text and "8 points" not in text
    only = {("barrier", True): CURVES["barrier", True]}
    assert "MPICH is fastest at all 1 points" in "\n".join(shown(curves=only))
    ours = {("allreduce", False): CURVES["allreduce", False]}
    assert "fastest at all 1 points, 2.0x" in "\n".join(shown(curves=ours))
    assert "not saved" not in "\n".join(shown())


def test_times_that_stayed_are_named():
    stayed = [Disagreement("allreduce", 8 << n, RING, 9.63e-6, 3.28e-3) for n in range(8)]
    text = " ".join(tuning_report.lines(
        MACHINE, tuning_report.fastest_candidates(CURVES,
                                                  JobTimes(CURVES)), (), 1000, stayed=stayed))
    assert "not changed: 8 times of the table that differ from the new ones by more" in text
    assert "allreduce 8 B ring 9.63 us (now 3.28 ms)" in text and "and 2 more; --replace" in text


# Which installed hpccoll a folder of source hides
def package(folder, built):
    runtime = folder / "hpccoll" / "runtime" / "execution"
    runtime.mkdir(parents=True)
    if built:
        (runtime / f"_executor{EXTENSION_SUFFIXES[0]}").touch()
    return folder / "hpccoll"


@pytest.mark.parametrize("here, there, found", [
    (False, True, True), (True, True, False), (False, False, False)])
def test_only_what_is_lost_is_told(tmp_path, here, there, found):
    clone, site = package(tmp_path / "clone", here), package(tmp_path / "site", there)
    path = [str(tmp_path / "clone"), str(tmp_path / "nowhere"), str(tmp_path / "site")]
    assert hidden_install(clone, path) == (str(site) if found else "")


def test_a_program_started_in_a_clone(tmp_path):
    """As Python finds it: the folder in which ``python -m`` starts comes before what is installed.

    Both hold this package, by links: the one in the clone without its compiled parts.
    """
    source = Path(hpccoll.__file__).parent
    clone, site = tmp_path / "clone" / "hpccoll", package(tmp_path / "site", True)
    for file in source.rglob("*.py"):
        link = clone / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    done = subprocess.run(
        [sys.executable, "-c",
         "import mpi4py; mpi4py.rc.initialize = False\n"
         "from hpccoll.tools.bench.provenance import hidden_install; print(hidden_install())"],
        cwd=clone.parent, env={"PYTHONPATH": str(site.parent)}, capture_output=True, text=True,
        check=False)
    assert done.stdout.strip() == str(site), done.stderr
