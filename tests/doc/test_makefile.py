"""Every line of ``make figures`` runs, on few bytes and for a moment, in this environment."""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import ROOT

BIN = Path(sys.executable).parent
SHORT = ("-m", "8", "--seconds", "0.01", "--sweeps", "1", "--ranks", "2")


def measurements():
    """The arguments of each benchmark, less the environments that it names."""
    if shutil.which("make") is None:
        return []
    text = subprocess.run(["make", "--no-print-directory", "-n", "figures"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout
    found = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()
             if "benchmarks/bench_matrix.py" in line]
    return [[word for before, word in zip(words[start:], words[start + 1:])
             if "-e" not in (before, word)]
            for words in found for start in [words.index("benchmarks/bench_matrix.py")]]


def test_there_are_measurements():
    if shutil.which("make") is not None:
        assert len(measurements()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    pytest.param(words, marks=[pytest.mark.long] if number else [])
    for number, words in enumerate(measurements())], ids=lambda words: words[words.index("-o") + 1])
def test_a_measurement_runs(capture, tmp_path, words):
    if "--peers" in words and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if not (BIN / "mpiexec").exists():
        pytest.skip("there is no mpiexec in this environment")
    status, output = capture(sys.executable, ROOT / "benchmarks/bench_matrix.py", *words, *SHORT,
                             "-e", BIN.parent, "-o", tmp_path / "figures")
    assert status == 0, output
    ratios = (tmp_path / "figures" / "ratios.md").read_text(encoding="utf-8")
    assert "| 8 |" in ratios or "| 16 |" in ratios
    assert len(list((tmp_path / "figures").glob("*.json"))) == 1


def recipe(target):
    """What ``make`` would print and run for a target."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    return subprocess.run(["make", "--no-print-directory", "-n", target], cwd=ROOT,
                          capture_output=True, text=True,
                          check=True).stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_steps_of_training_are_measured(capture, tmp_path, number):
    if importlib.util.find_spec("torch") is None or not (BIN / "mpiexec").exists():
        pytest.skip("needs PyTorch and mpiexec in this environment")
    lines = [line for line in recipe("figures").replace("\\\n", " ").splitlines()
             if "-n 2 .venv-figures/mpich/bin/python benchmarks/training_steps.py " in line]
    assert len(lines) == 2
    words = shlex.split(lines[number].partition("benchmarks/")[2].split(";")[0])
    status, output = capture(BIN / "mpiexec", "-n", "2", sys.executable, f"benchmarks/{words[0]}",
                             *[word.replace(",horovod", "") for word in words[1:]],
                             "--gradients", "1M", "--steps", "1", "--json", tmp_path / "x.json")
    assert status == 0, output
    assert (tmp_path / "x.json").stat().st_size > 100


def test_bench_says_how_to_go_on():
    text = recipe("bench")
    assert f"{ROOT}/.venv/bin/hpccoll" in text
    assert ". .venv/bin/activate" in text
    assert ". .venv/bin/activate" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_figures_fill_the_pages():
    assert recipe("figures").splitlines()[-1].endswith("docs/figures.py")


def test_warnings_of_the_site_are_errors():
    assert "mkdocs build --strict\n" in recipe("docs")  # --quiet would hide them from it


def test_help_names_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    for target in targets.split()[1:]:
        assert target == "help" or f"# make {target} " in makefile
