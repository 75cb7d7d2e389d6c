"""Synthesis: what is found is right, what is not found does not exist, as SCCL has published."""

import importlib.util
import json

import pytest
from launch import ROOT

pytest.importorskip("z3")
pytest.importorskip("click")

import z3
from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.proof.verifier import verify
from hpccoll.simulator import machine_model

SPEC = importlib.util.spec_from_file_location("synthesize", ROOT / "examples" / "synthesize.py")
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)
synthesize, world = EXAMPLE.synthesize, EXAMPLE.world


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_a_ring_takes_half_of_its_ranks(size):
    place = world(f"ring:{size}")
    assert synthesize("allgather", place, size // 2 - 1, size, 1) is None if size > 3 else True
    made = synthesize("allgather", place, size // 2, size // 2)
    assert verify(made).rounds == size // 2


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "bcast", "reduce_scatter"])
def test_every_collective_is_proved(collective):
    made = synthesize(collective, world("2x2"), 2, 3, root=3 if collective == "bcast" else 0)
    proof = verify(made)
    assert proof.rounds <= 4 and proof.replicas_identical


def test_sccl_on_a_dgx1():
    """Its published frontier: no step fewer, two chunks in three units, three not in four."""
    place = world("dgx1")
    assert synthesize("allgather", place, 1, 8) is None
    assert verify(synthesize("allgather", place, 2, 2)).rounds == 2
    assert verify(synthesize("allreduce", place, 2, 3, chunks=2)).rounds == 4
    assert synthesize("allreduce", place, 2, 4, chunks=3) is None


def test_uplinks_of_a_machine_bind():
    free, narrow = world("2x4"), world("2x4", machine_model.find("hdr"))
    assert len(narrow[1]) == len(free[1]) + 4


@pytest.mark.parametrize("given, message", [
    ({"chunks": 2}, "allgather"),
    ({"budget": 1}, "2 rounds"), ({"root": 9}, "9.*rank")])
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        synthesize(**{"collective": "allgather", "place": world("ring:4"), "rounds": 2,
                      "budget": 2, **given})
    with pytest.raises(ValueError, match="write ring:8"):
        world("ring:x")


@pytest.mark.parametrize("name", ["scan", "allgathr"])
def test_another_collective_is_a_usage_error(capsys, name):
    with pytest.raises(SystemExit, match="2"):
        EXAMPLE.main([name, "ring:4"])
    assert "allgather" in capsys.readouterr().err


def test_the_program_writes_what_others_take(tmp_path, capsys):
    path = tmp_path / "two.json"
    assert not EXAMPLE.main(["allreduce", "2x2", "--machine", "hdr", "--rounds", "2",
                             "-o", str(path)])
    output = capsys.readouterr().out
    assert "there is none" in output and "found" in output and "on hdr" in output
    assert json.loads(path.read_text())["size"] == 4
    for words in (["verify", str(path), "--jobs", "1"], ["explain", str(path)],
                  ["simulate", str(path), "--size", "4", "--algorithm", "ring"]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    assert EXAMPLE.main(["allgather", "ring:6", "--rounds", "2"]) == 1
    assert "there is none" in capsys.readouterr().out


def test_a_solver_that_was_interrupted_is_no_solver_without_an_answer(monkeypatch):
    """It takes Ctrl-C for itself."""
    monkeypatch.setattr(z3.Solver, "check", lambda self: z3.unknown)
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "interrupted from keyboard")
    with pytest.raises(KeyboardInterrupt):
        synthesize("allgather", world("ring:4"), 2, 2)
