"""Schedules from files: read back as written, and what else a file may hold."""

import json
from pathlib import Path

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.files import read
from hpccoll.algorithms.outside import load
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.explain import as_json, as_msccl
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send
from support.extra_schedules import extra_schedules


@pytest.fixture(autouse=True)
def fresh():
    load.cache_clear()
    yield
    load.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_json_is_read_back_step_by_step(collective, tmp_path):
    path = tmp_path / "made.json"
    for name in ALGORITHMS[collective]:
        made = schedule(collective, name, 4, root=0)
        path.write_text(json.dumps(as_json(made)))
        again = read(str(path))
        assert list(again.programs()) == [p._replace(scratch=tuple(p.scratch))
                                          for p in made.programs()]
        assert (again.nblocks, again.uniform) == (made.nblocks, made.uniform)
        hpccoll.verify(again)


def test_lanes_are_kept_in_json_and_joined_for_msccl(tmp_path):
    lanes = str(Path(__file__).resolve().parents[3] / "examples" / "lanes.py")
    made = schedule("allreduce", f"{lanes}:TWO_WAYS", 4)
    path = tmp_path / "made.json"
    path.write_text(json.dumps(as_json(made)))
    assert list(read(str(path)).programs()) == list(made.programs())
    joined = tmp_path / "made.xml"
    joined.write_text(as_msccl(made))
    hpccoll.verify(read(str(joined)))
    # Every rank would send first, and none receive.
    apart = schedule("allgather", lambda rank, size: Program((
        (copy(at(OUT, rank), at(IN, 0)),), (send(1 - rank, at(IN, 0)),),
        (recv(1 - rank, at(OUT, 1 - rank)),)), (), ((), (), ())), 2)
    hpccoll.verify(apart)
    with pytest.raises(ScheduleError, match="cannot be written as MSCCL's XML: .*deadlock"):
        as_msccl(apart)
    # As is every schedule that was read from such a file.
    joined.write_text(as_msccl(schedule("allreduce", "ring", 4)))
    with pytest.raises(ScheduleError, match="cannot be written as MSCCL's XML"):
        as_msccl(read(str(joined)))


def test_a_file_is_an_algorithm_for_its_size_and_root(tmp_path):
    made = schedule("bcast", "binomial", 6, root=2)
    path = tmp_path / "made.json"
    path.write_text(json.dumps(as_json(made)))
    hpccoll.verify(schedule("bcast", str(path), 6, root=2))
    with pytest.raises(ArgumentError, match="support 5 ranks"):
        schedule("bcast", str(path), 5)
    with pytest.raises(ArgumentError, match="root 2.*0"):
        hpccoll.verify(schedule("bcast", str(path), 6))
    xml = tmp_path / "made.xml"
    xml.write_text(as_msccl(schedule("allreduce", "ring", 3)))
    assert hpccoll.verify(schedule("allreduce", str(xml), 3)).replicas_identical
    assert load(str(xml)).size == 3


@pytest.mark.parametrize("text, message", [
    ("", "JSONDecodeError"), ("[]", "TypeError"), ('{"format": 2}', "format 2"),
    ('{"format": 1, "programs": [], "size": 3}', "0 programs.*3 ranks")])
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=f"explain --json.*{message}"):
        read(str(path))
    with pytest.raises(ArgumentError, match="nowhere.json"):
        read("nowhere.json")


def test_operations_of_the_network_are_read_back(tmp_path):
    for made in extra_schedules(3, range(1)):
        path = tmp_path / "made.json"
        path.write_text(json.dumps(as_json(made)))
        assert list(read(str(path)).programs()) == list(made.programs())
    with pytest.raises(ScheduleError, match="round 1: MSCCL"):
        as_msccl(next(made for made in extra_schedules(3) if made.algorithm == "summed"))
