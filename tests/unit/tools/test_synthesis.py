"""Synthesis: what is found is right, what is not found does not exist, as SCCL has published."""

import json
from pathlib import Path

import pytest

pytest.importorskip("z3")
pytest.importorskip("click")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.errors import ArgumentError
from hpccoll.proof.verifier import verify
from hpccoll.simulator import catalog
from hpccoll.tools.synthesis import synthesize, world


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
    free, narrow = world("2x4"), world("2x4", catalog.find("hdr"))
    assert len(narrow.limits) == len(free.limits) + 4


@pytest.mark.parametrize("given, message", [
    ({"collective": "scan"}, "not synthesized"),
    ({"collective": "allgathr"}, "did you mean 'allgather'"),
    ({"chunks": 2}, "a block of allgather is not"),
    ({"budget": 1}, "too few for 2 rounds"), ({"root": 9}, "9 is not a rank")])
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ArgumentError, match=message):
        synthesize(**{"collective": "allgather", "place": world("ring:4"), "rounds": 2,
                      "budget": 2, **given})
    with pytest.raises(ArgumentError, match="write ring:8"):
        world("ring:x")


def test_the_command_writes_what_others_take(tmp_path):
    path = str(tmp_path / "two.json")
    call = CliRunner().invoke
    done = call(main, ["synthesize", "allreduce", "--topology", "2x2", "--machine", "hdr",
                       "--rounds", "2", "-o", path])
    assert done.exit_code == 0 and "there is none" in done.output, done.output
    assert "found" in done.output and "simulated on hdr" in done.output
    assert json.loads(Path(path).read_text())["size"] == 4
    for words in (["verify", path, "--jobs", "1"], ["explain", path],
                  ["simulate", path, "--size", "4", "--algorithm", "ring"]):
        done = call(main, words)
        assert done.exit_code == 0, done.output
    done = call(main, ["synthesize", "allgather", "--topology", "ring:6", "--rounds", "2"])
    assert done.exit_code == 1 and "there is none" in done.output


@pytest.mark.parametrize("terminal", ["1", None])
def test_a_search_is_shown_on_a_terminal_only(terminal):
    done = CliRunner().invoke(main, ["synthesize", "allgather", "--topology", "ring:4"],
                              env={"FORCE_COLOR": terminal, "TERM": "xterm", "COLUMNS": "80"})
    assert done.exit_code == 0 and "found in" in done.stdout
    assert ("searching schedules of 2 rounds and 2 units" in done.stderr) == bool(terminal)
    assert "searching" not in done.stdout


@pytest.mark.parametrize("calls", [0, 1, 40])
def test_who_is_told_to_stop_raises_wherever_it_is(calls):
    told = iter([False] * calls)
    with pytest.raises(KeyboardInterrupt):
        synthesize("allgather", world("ring:6", None, 1), 3, 3,
                   stopped=lambda: next(told, True))


def test_a_solver_that_was_interrupted_is_no_solver_without_an_answer(monkeypatch):
    """It takes Ctrl-C for itself."""
    z3 = pytest.importorskip("z3")
    monkeypatch.setattr(z3.Solver, "check", lambda self: z3.unknown)
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "interrupted from keyboard")
    with pytest.raises(KeyboardInterrupt):
        synthesize("allgather", world("ring:4", None, 1), 2, 2)
