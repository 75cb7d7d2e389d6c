"""Algorithms from outside the table: files, modules, entry points, and what goes wrong there."""

import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import hpccoll
from hpccoll.algorithms import algorithm_names, find, outside
from hpccoll.algorithms.outside import load, read_algorithm, split
from hpccoll.errors import ArgumentError

TORUS = str(Path(__file__).resolve().parents[3] / "examples" / "torus.py") + ":TORUS"
SWAP = """
from hpccoll import Algorithm
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send

def swap(rank, size, times=1):
    \"\"\"Two ranks swap blocks.\"\"\"
    return Program(((copy(at(OUT, rank), at(IN, 0)),),
                    (send(1 - rank, at(OUT, rank)), recv(1 - rank, at(OUT, 1 - rank)))))

SWAP = Algorithm(swap, "allgather", fits=lambda size, times: size == 2,
                 rounds=lambda size, times: 1)
NAMELESS = Algorithm(swap)
MISSPELT = Algorithm(swap, "allgahter")
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def fresh():
    """What was read in one test is read again in the next."""
    for function in (load, outside._points, outside._entry_point_algorithms):
        function.cache_clear()
    yield
    for function in (load, outside._points, outside._entry_point_algorithms):
        function.cache_clear()


@pytest.fixture
def swap(tmp_path):
    path = tmp_path / "swap.py"
    path.write_text(SWAP)
    return str(path)


def install(monkeypatch, *points):
    """Pretend that packages with these entry points are installed."""
    found = tuple(EntryPoint(name, value, outside.GROUP) for name, value in points)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)


def test_a_reference_is_divided_from_its_settings():
    assert split("ring:k") == ("ring", ["k"]) and split("a.b:c") == ("a.b:c", [])
    assert split("/x/y.py:f:k=1:segment=8") == ("/x/y.py:f", ["k=1", "segment=8"])


def test_parameters_are_written_one_way():
    assert read_algorithm(" my.py:f : x=2 : y=4") == ("my.py:f", {"x": 2, "y": 4})
    for text, told in (("knomial,k=4", "write parameters like knomial:k=4"),
                       ("my.py:f,x=2", "cannot read 'f,x=2'"), ("ring:k=1:k=2", "k is given twice"),
                       ("ring:size=4", "size is not an algorithm parameter")):
        with pytest.raises(ArgumentError, match=told):
            read_algorithm(text)


def test_the_torus_is_proved_by_its_reference():
    for x, y, z in ((2, 2, 2), (3, 2, 2), (4, 1, 3), (1, 1, 1), (5, 3, 1)):
        built = hpccoll.schedule("allreduce", TORUS, x * y * z, x=x, y=y, z=z)
        proof = hpccoll.verify(built)
        assert built.algorithm == "torus" and proof.replicas_identical
        assert (proof.rounds, proof.sent) == (2 * (x + y + z - 3), 4 * (x * y * z - 1))


def test_an_algorithm_says_what_its_schedules_are(swap):
    built = hpccoll.schedule("allgather", f"{swap}:SWAP", 2)
    assert (built.algorithm, built.rounds, built.params) == ("swap", 1, (("times", 1),))
    hpccoll.verify(built)
    assert str(load(f"{swap}:swap")) == "swap" and not load(f"{swap}:swap").collective
    entry = hpccoll.Algorithm(load(TORUS).build, "allreduce", blocks=4)
    assert hpccoll.schedule("allreduce", entry, 2, x=2, y=1, z=1).nblocks == 4
    assert hpccoll.schedule("allreduce", entry, 2, nblocks=6, x=2, y=1, z=1).nblocks == 6


@pytest.mark.parametrize("where, name, message", [
    ("", "SWAPP", "'SWAPP'.*SWAP, NAMELESS, MISSPELT.*'SWAP'"),
    ("", "", "swap.py:SWAP.*SWAP, NAMELESS"),
    ("", "NUMBER", "3.*hpccoll.Algorithm"),
    ("", "MISSPELT", "'allgahter'.*'allgather'"),
    ("", "a b", "FILE.py:NAME.*PACKAGE.MODULE:NAME"),
    ("x", "SWAP", "'swap.py'")])
def test_what_is_wrong_with_a_reference_is_said(swap, where, name, message):
    with pytest.raises(ArgumentError, match=message):
        load(f"{swap.replace('swap.py', f'swap{where}.py')}:{name}".removesuffix(":"))


@pytest.mark.parametrize("text, message", [
    ("import nowhere_to_be_found\n", "ModuleNotFoundError.*line 1"),
    ("x = 1\nraise SystemExit(3)\n", "SystemExit.*line 2: 3"),
    ("def f(:\n", "SyntaxError")])
def test_a_file_that_does_not_run_is_named(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=rf"broken\.py .*{message}"):
        load(f"{path}:f")


def test_modules_are_found_in_the_folder_of_the_command(swap, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "swaps.py").write_text("from swap import SWAP\n")
    assert load("my_package.swaps:SWAP").collective == "allgather"
    with pytest.raises(ArgumentError, match="no.such_module.*ModuleNotFoundError"):
        load("no.such_module:x")


@pytest.mark.parametrize("size, params, message", [
    (8, {}, "x: .*torus.*x, y, z.*-p x=2 -p y=2 -p z=2"),
    (8, {"x": 2, "y": 2}, "z: .*torus.*-p z=2"),
    (8, {"x": 2, "y": 2, "zz": 2}, "zz: .*torus.*x, y, z"),
    (6, {"x": 2, "y": 2, "z": 2}, "size: .*torus.*6 ranks, x=2, y=2, z=2"),
    (8, {"x": "2", "y": 2, "z": 2}, "size: .*torus.*8 ranks.*'2', y=2, z=2")])
def test_parameters_of_ones_own_are_checked(size, params, message):
    for algorithm in (TORUS, load(TORUS)):
        with pytest.raises(ArgumentError, match=message):
            hpccoll.schedule("allreduce", algorithm, size, **params)


def test_bare_builders_are_asked_what_they_take():
    build = load(TORUS).build
    with pytest.raises(ArgumentError, match="torus.*x, y, z"):
        hpccoll.schedule("allreduce", build, 8, nblocks=16)

    def anything(rank, size, **params):
        return build(rank, size, **params)
    assert hpccoll.schedule("allreduce", anything, 8, nblocks=16, x=2, y=2, z=2).params == (
        ("x", 2), ("y", 2), ("z", 2))


def test_what_an_algorithm_says_must_be_callable_with_its_parameters():
    entry = hpccoll.Algorithm(load(TORUS).build, "allreduce", blocks=lambda size: size)
    with pytest.raises(ArgumentError, match=r"torus.*blocks\(size, x, y"):
        hpccoll.schedule("allreduce", entry, 8, x=2, y=2, z=2)


def test_an_algorithm_serves_its_own_collective_only():
    with pytest.raises(ArgumentError, match="implements allreduce.*bcast"):
        hpccoll.schedule("bcast", TORUS, 8)
    with pytest.raises(ArgumentError, match="torus.*allreduce.*bcast"):
        hpccoll.schedule("bcast", load(TORUS), 8)


def test_installed_packages_add_names(monkeypatch, swap, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "many_swaps.py").write_text(
        SWAP + "BOTH = (SWAP, Algorithm(swap, 'alltoall', name='exchange'))\n")
    install(monkeypatch, ("swap", "many_swaps:BOTH"))
    assert find("allgather", "swap").collective == "allgather"
    assert find("alltoall", "swap").label == "exchange"
    assert "swap" in algorithm_names()["allgather"] and "swap" not in algorithm_names()["bcast"]
    hpccoll.verify(hpccoll.schedule("allgather", "swap", 2))
    with pytest.raises(ArgumentError, match="'swp'.*'swap'"):
        find("allgather", "swp")


@pytest.mark.parametrize("value, message", [
    ("nowhere_to_be_found:X", "ModuleNotFoundError"), ("math:pi", "TypeError"),
    ("math:sin", "TypeError")])
def test_a_broken_package_is_a_warning_that_names_it(monkeypatch, value, message):
    install(monkeypatch, ("bad", value))
    with pytest.warns(RuntimeWarning, match=f"'bad' .*package.*{message}"):
        with pytest.raises(ArgumentError, match="allgather.*'bad'"):
            find("allgather", "bad")


def test_nothing_is_read_for_names_of_the_table(monkeypatch):
    install(monkeypatch, ("ring", "nowhere_to_be_found:X"), ("other", "nowhere_to_be_found:X"))
    assert find("allreduce", "ring").build.__module__.startswith("hpccoll.")
