"""Algorithms of one's own on the command line: ``verify``, ``explain``, ``simulate``."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.algorithms import outside
from hpccoll.cli import main

ROOT = Path(__file__).resolve().parents[3]
TORUS = str(ROOT / "examples" / "torus.py") + ":TORUS"
CUBE = "-p", "x=2", "-p", "y=2", "-p", "z=2"


def call(*words):
    return CliRunner().invoke(main, list(words))


def test_verify_proves_what_fits():
    done = call("verify", TORUS, "--size", "1-12", *CUBE, "--jobs", "1")
    assert done.exit_code == 0 and "1 schedule proved" in done.output, done.output
    # As bench and simulate call it: without folders, which a narrow terminal has no room for.
    assert "torus.py:TORUS:x=2:y=2:z=2 1 any same bits 6 at 8" in " ".join(done.output.split())
    done = call("verify", TORUS.replace("TORUS", "torus"), "--size", "8", *CUBE, "--collective",
                "allreduce", "--jobs", "1")
    assert done.exit_code == 1 and "does not exist: this rank has 1 slots" in done.stderr


def test_verify_and_explain_know_the_names_of_installed_packages(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (
        EntryPoint("snake", "examples.torus:TORUS", group),))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(ROOT)
    for function in (outside._points, outside._entry_point_algorithms):
        function.cache_clear()
    try:
        done = call("verify", "snake", "--size", "8", *CUBE, "--jobs", "1")
        assert done.exit_code == 0 and "1 schedule proved" in done.output, done.output
        listed = call("explain", "allreduce").output
        assert "  snake                  Reduce-scatter along each dimension" in listed
        assert "snake" not in call("explain", "bcast").output
    finally:
        for function in (outside._points, outside._entry_point_algorithms):
            function.cache_clear()


def test_verify_takes_a_name_for_every_collective_that_has_it():
    done = call("verify", "ring", "--size", "1-3", "--jobs", "1")
    assert done.exit_code == 0 and "9 schedules proved" in done.output, done.output
    done = call("verify", "rign", "--size", "4")
    assert done.exit_code == 2 and "'rign' is unknown; did you mean 'ring'" in done.stderr


def test_a_file_alone_names_what_it_has():
    for command in ("explain", "verify", "simulate"):
        done = call(command, TORUS.removesuffix(":TORUS"))
        assert done.exit_code == 2 and "torus.py:TORUS; it has TORUS, torus" in done.stderr


def test_verify_finds_a_slip(tmp_path):
    """Leaving the last round out is refused; without ``[:-1]`` this test fails."""
    (tmp_path / "slip.py").write_text(
        "from hpccoll import Algorithm\n"
        "from hpccoll.algorithms.flat import ring\n"
        "SLIP = Algorithm(lambda rank, size: ring.allgather(rank, size)._replace(\n"
        "    rounds=ring.allgather(rank, size).rounds[:-1]), 'allgather', rank_order=True)\n")
    done = call("verify", f"{tmp_path}/slip.py:SLIP", "--size", "4", "--jobs", "1")
    assert done.exit_code == 1 and "not proved: allgather SLIP size=4" in done.stderr


def test_explain_and_draw_beside(tmp_path):
    done = call("explain", TORUS, "--size", "8", *CUBE)
    assert done.exit_code == 0 and done.output.startswith("allreduce torus size=8 nblocks=16 x=2")
    assert call("explain", "allreduce", f"{TORUS}:x=2:y=2", "--size", "8", "-p",
                "z=2").output == done.output
    pytest.importorskip("matplotlib")
    path = tmp_path / "both.svg"
    done = call("explain", TORUS, "--size", "8", *CUBE, "--beside", "ring", "--beside",
                "rabenseifner", "--draw", str(path))
    assert done.exit_code == 0, done.output
    assert all(name in path.read_text() for name in ("torus", "ring", "rabenseifner"))


def test_simulate_compares():
    done = call("simulate", TORUS, "--size", "8", *CUBE, "--algorithm", "ring,knomial")
    assert done.exit_code == 2 and "no algorithm 'knomial'" in done.stderr
    done = call("simulate", TORUS, "--size", "8", *CUBE)
    assert done.exit_code == 0 and "6 rounds" in done.output
    done = call("simulate", "allreduce", "--nodes", "2", "--ppn", "4", "--algorithm",
                f"{TORUS}:x=4:y=2:z=1,ring")
    assert done.exit_code == 0 and "  torus.py:TORUS:x=4:y=2:z=1 " in done.output
    assert "ring" in done.output


@pytest.mark.parametrize("words, message", [
    (("verify", TORUS, "--size", "8"), "requires x, y, z"),
    (("verify", TORUS, "--size", "6", *CUBE),
     "supports none of them: size: torus does not support 6"),
    (("verify", "-p", "x=2"), "--param: requires NAME or FILE.py:NAME"),
    (("verify", TORUS.replace("TORUS", "torus"), *CUBE), "is a builder without"),
    (("explain", TORUS, "--size", "8", *CUBE, "--beside", "ring"), "requires --draw"),
    (("explain", f"{TORUS}:x=2", "--size", "8", *CUBE), "--param: x is given twice"),
    (("explain", "allredcue", "ring"), "did you mean 'allreduce'"),
    (("explain", "nowhere.py:x"), "there is no file 'nowhere.py'"),
    (("simulate", TORUS, "--size", "8", "--topology", "2x4", *CUBE), "does not go with --topology"),
    (("simulate", "allreduce", "-p", "k=2"), "requires FILE.py:NAME"),
    (("verify", "--algorithm", "rabensefner"), "did you mean 'rabenseifner'")])
def test_mistakes_are_one_line(words, message):
    done = call(*words)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1
