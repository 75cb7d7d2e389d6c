"""Ctrl-C ends a command in one line and with status 130, wherever it is; what is known is shown.

A terminal sends the signal to every process of the job at once: so do these tests, as soon as a
rank says that the work has begun.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import launch
import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

BIN = Path(sys.executable).parent
HPCCOLL = sys.executable, "-m", "hpccoll"
#: Runs the command line with a function that says so when it is called, and is slow.
SLOW = """
import importlib, sys, time
module, name, seconds, *sys.argv[1:] = sys.argv[1:]
module = importlib.import_module(module)
whole = getattr(module, name)
def slow(*words, **named):
    print("begun", flush=True)
    time.sleep(float(seconds))
    return whole(*words, **named)
setattr(module, name, slow)
from hpccoll.__main__ import main
main()
"""


def heard():
    """Hear Ctrl-C as a terminal's job does: what a script starts in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def interrupted(tmp_path):
    """Run ``interrupted(begun, command...)``; ``begun`` is called with the process and what it has
    printed, until it is true: then comes Ctrl-C. Returns status, output and errors."""
    def run(begun, *command):
        process = subprocess.Popen([str(word) for word in command], cwd=tmp_path,
                                   env=launch.settings(BIN), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True, preexec_fn=heard)
        seen, until = {process.stdout: b"", process.stderr: b""}, time.monotonic() + 60
        try:
            while not begun(process, b"".join(seen.values()).decode()):
                assert time.monotonic() < until and process.poll() is None, seen
                for stream in select.select(list(seen), [], [], 0.02)[0]:
                    seen[stream] += os.read(stream.fileno(), 1 << 16)
            os.killpg(process.pid, signal.SIGINT)
            rest = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return process.returncode, *((before + after).decode()
                                     for before, after in zip(seen.values(), rest))

    return run


def said(word, times=1):
    return lambda process, text: text.count(word) >= times


def has_beginners(process, text):
    """Whether two processes of its own are beginning: Python runs there, and would raise."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sum(would_raise(child) for child in children) >= 2


def would_raise(process):
    """Whether a process has a handler for Ctrl-C, as Python has from its start on, and is no helper
    of multiprocessing's."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        if "resource_tracker" in Path(f"/proc/{process}/cmdline").read_text():
            return False
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> signal.SIGINT - 1 & 1)


@pytest.mark.slow
def test_proofs_in_several_processes(interrupted):
    status, output, errors = interrupted(has_beginners, *HPCCOLL, "verify", "--jobs", "2")
    assert status == 130, errors
    assert errors.startswith("hpccoll: verify: interrupted: ") and errors.count("\n") == 1


@pytest.mark.slow
def test_a_long_simulation(interrupted):
    status, output, errors = interrupted(
        said("Ctrl-C ends it"), *HPCCOLL, "simulate", "alltoall", "--nodes", "3000", "--algorithm",
        "pairwise", "--no-fold")
    assert status == 130, errors
    assert "stopped after 0 of 1 simulations, in pairwise" in errors and errors.count("\n") == 2


#: Command -> what is slow of it, by how many seconds, and what it says at the end.
COMMANDS = {
    ("bench", "allreduce", "-m", "8:1M"): (
        "hpccoll.tools.bench.session", "run", 0, "interrupted: some cases were not measured"),
    ("bench", "allreduce", "--format", "csv"): (
        "hpccoll.tools.bench.session", "run", 0,
        "hpccoll: bench: interrupted: some cases were not measured"),
    ("tune", "-o", "table.json"): (
        "hpccoll.measure.survey", "survey", 0, "hpccoll: tune: interrupted; no file is written"),
    ("topo",): ("hpccoll.tools.topo.links", "_pair", 0.5,
                "pairs of ranks were not measured"),
    ("simulate", "--calibrate", "here.json"): (
        "hpccoll.tools.calibrate", "_message_seconds", 0,
        "hpccoll: simulate: interrupted; no file is written"),
    ("doctor",): ("hpccoll.tools.doctor", "gather", 60, "hpccoll: doctor: interrupted")}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_ranks_end_together(interrupted, tmp_path, command):
    launcher = launch.mpiexec(BIN)
    if launcher is None:
        pytest.skip("there is no mpiexec in this environment")
    if MPI.get_vendor()[0] == "Open MPI":
        pytest.skip("its mpiexec kills the ranks, and passes on nothing that they say")
    module, name, seconds, last = COMMANDS[command]
    ranks = 4 if command[0] == "topo" else 2
    # The others have met before their work; doctor's ranks may be importing modules until they say.
    status, output, errors = interrupted(
        said("begun", ranks if command == ("doctor",) else 1), launcher, "-n", ranks,
        sys.executable, "-c", SLOW, module, name, seconds, *command)
    assert status == 130, (output, errors)
    assert (output + errors).count(last) == 1, (output, errors)
    assert "Traceback" not in output + errors
    assert not list(tmp_path.iterdir())
    if command == ("topo",):
        assert f"{ranks} ranks, layout" in output
