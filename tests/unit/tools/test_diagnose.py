"""Why jobs hung: recorded hangs of real jobs, each with its verdict, and records made up.

A folder of ``records`` holds what three ranks wrote with MPICH: ``HPCCOLL_TRACE=records/WAY mpiexec
-n 3 python hang.py WAY``, where ten allreduces go well before something happens.
"""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from hpccoll.errors import ArgumentError
from hpccoll.tools.diagnose import diagnose, heading, read, table

RECORDS = Path(__file__).parent / "records"
#: What happened, and words that the verdict begins with, or must have.
VERDICTS = {
    "away": ("Rank 1 has not started call 11 of MPI_COMM_WORLD, allreduce", "in which ranks 0,2 "
             "wait; it is in the program at hang.py:20, and its last call was 10."),
    "slow": ("Rank 1 has not started call 11", "Before that, rank 1 was last in 9 of 10 calls, on "
                                               "average 36 ms after the first rank."),
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
        file = io.StringIO()
        Console(file=file, width=100).print(table(found.comms[0]))
        assert all(len(line) <= 100 for line in file.getvalue().splitlines())
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


def file_of(rank, everybody, calls=(), report=None, why="SIGUSR1"):
    return {"format": "hpccoll flight 1", "why": why, "when": 5.0 + rank, "job": "j", "rank": rank,
            "ranks": len(everybody), "host": "h", "pid": 1, "site": "program.py:1",
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
    report = {"when": "12:00:00", "reason": "CollectiveTimeout: no progress", "heard": ""}
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


def test_a_rank_on_another_machine_that_wrote_nothing():
    everybody = [doing(0, "waiting", 3, 2, [1]), doing(1, "not heard of", -1, -1)]
    assert "Rank 1 has not reported" in diagnose([file_of(0, everybody)]).verdict


def test_types_that_a_rank_does_not_know_are_no_difference():
    everybody = [doing(rank, "waiting", 1, 0, [1 - rank]) for rank in range(2)]
    files = [file_of(0, everybody, [call(1, collective="bcast", dtype="f8")]),
             file_of(1, everybody, [call(1, collective="bcast")])]
    assert "disagree" not in diagnose(files).verdict


@pytest.mark.parametrize("text", ["", "[]", '{"format": "hpccoll flight 0"}'])
def test_what_is_no_record_is_named(tmp_path, text):
    with pytest.raises(ArgumentError, match="records"):
        read(tmp_path)
    (tmp_path / "flight-x-rank00000.json").write_text(text)
    with pytest.raises(ArgumentError, match="rank00000.json.*flight"):
        read(tmp_path)
