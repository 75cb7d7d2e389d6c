"""Run the whole suite on every MPI: ``python tests/launch.py ENVIRONMENT...``

An environment is a virtual environment that holds one MPI. There are four kinds of stages:

* what needs no launcher - units, laws, golden texts, doctests - once, in the first environment;
* ``tests/mpi`` and ``tests/contract`` on real ranks, in every environment: all of it on two ranks,
  and on other numbers of ranks those tests in which the number matters. More of them run on three
  ranks in the first environment, and on four in later ones;
* samples of both with the Python executor, and without the compiled parts, as they are where no
  compiler was found;
* ``tests/doc``, ``tests/fault``, ``tests/cluster`` and ``tests/suites``, whose tests launch ranks
  themselves, in every environment; ``tests/cluster`` on hosts and Slurm clusters of its own, which
  takes root and Debian's packages, and ``tests/suites`` has mpi4py's own tests.

What arithmetic, a framework or our own code decides, and not the MPI library, runs in the first
environment only: the files of ``ONCE``, and tests marked ``once``. Tests marked ``again`` are those
that it leaves to a later environment, where there is one.

On real ranks, rank 0 writes to the screen and the others to files, shown when a stage fails. The
first rank that fails aborts its whole job, so that nobody waits for it, and every stage has a
hard time limit on top. A stage that fails is run once more, without a launcher only the tests that
failed: where other work shares the machine, a rank may come later than a test's deadline allows.
The last lines name every test that failed, also where the second run passed. Needs nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


def files(*names: str) -> tuple[str, ...]:
    """The files of tests on real ranks of such names."""
    return tuple(f"tests/mpi/test_{name}.py" for name in names)


def without(*files: str) -> tuple[str, ...]:
    """What makes pytest leave files out."""
    return tuple(f"--ignore={file}" for file in files)


#: What depends on the number of ranks alone: algorithms and layouts. Where a processor serves
#: several ranks, every message waits for its turn, so that nothing else runs on many of them.
BY_SIZE = files("determinism", "discover", "placement", "calls")
#: What depends on it as well: who is a minority, who is a neighbour, what a group leaves out.
MORE = (*BY_SIZE, "tests/contract/test_messages.py", *files(
    "brought", "cache", "communicators", "compiled", "contract", "exchange", "groups", "half",
    "numbers", "objects_messages", "persistent", "registered", "requests", "sequences", "shard",
    "compiled_requests", "threads", "torch_group", "torch_training"))
#: Any rank may be the one that differs from many others.
MANY = (*BY_SIZE, "tests/mpi/test_contract.py::test_every_rank_learns_who_differs")
ALL = ("tests/mpi", "tests/contract")
#: By number of ranks, in the first environment, and in later ones.
FIRST = {
    # The least that training can do: examples/train_*.py run on one rank, too.
    1: (*ALL, *without(*files("bench_step", "jax_training", "keras", "leaks", "many",
                              "torch_accuracy", "torch_tools"))),
    2: ALL,
    3: (*MORE, "tests/mpi/test_nccl.py::test_unlike_nodes_are_refused", *files(
        "averaging", "begun", "broken", "compress", "exchange_errors", "jax",
        "mpi4py_names", "objects", "objects_errors", "profile", "survey",
        "torch_hooks", "torch_horovod", "torch_optimizer", "torch_peers", "torch_scaler", "tune",
        "uneven")),
    4: (*BY_SIZE, *files("exchange", "groups"),
        "tests/mpi/test_nccl.py::test_nccl_inside_nodes_and_ours_across"),
    5: MANY, 8: MANY}
SIZES = tuple(FIRST)
#: Decided by arithmetic, a framework or our own code, and not by the MPI library.
ONCE = files("averaging", "bench_step", "compress", "exchange_errors", "jax", "jax_training",
             "keras", "probe", "survey", "torch_accuracy", "torch_tools")
LATER = {1: MORE, 2: (*ALL, *without(*ONCE)), 3: BY_SIZE, 4: MORE, 5: MANY, 8: MANY}
#: Of the documentation, what starts ranks; the rest is the same with every MPI library.
STARTING = tuple(f"tests/doc/test_{name}.py" for name in (
    "examples", "pages", "progress", "run", "torch"))
#: A sample for the interpreter, where most of the others run compiled.
INTERPRETED = files("sequences", "registered")
#: Takes the compiled parts away when it is on PYTHONPATH; samples for that, which need no launcher,
#: run on ranks, and do so in every environment.
UNCOMPILED = ROOT / "tests" / "uncompiled"
ABSENT_ALONE = (*(f"tests/unit/{part}" for part in (
    "arrays", "comm", "guard", "runtime", "simulator/test_simulator.py")),
    # No part of which is compiled, or only what it is compared with.
    *without(*(f"tests/unit/cuda/test_{name}.py" for name in ("kernels", "device_order"))))
ABSENT_ONCE = ("tests/mpi/test_half.py", "tests/mpi/test_requests.py")
ABSENT = ("tests/uncompiled", "tests/mpi/test_calls.py")
#: Stands for the folder of a stage in its command.
LOGS = "{logs}"
#: Limit of a stage in seconds, twice what the longest takes; the status of who reached it.
LIMIT, TIMED_OUT = 1500, 124
PYTEST = ("-m", "pytest", "-q", "--color=no")
#: Ranks would write one cache together.
UNCACHED = ("-p", "no:cacheprovider")
#: What needs no launcher runs in a process per core.
PARALLEL = ("-n", "auto", "--maxprocesses", "8")
#: Tests that start jobs of their own leave processors idle while jobs begin, and wait: two at a
#: time. Of faults no more than one test of each file, since they are also judged by time. Not those
#: that make hosts and clusters: a process of xdist's that is ended leaves these behind.
PAIRED, PAIRED_FILES = ("-n", "2"), ("-n", "2", "--dist", "loadfile")
#: What every rank starts, with a directory as $0: it keeps the ranks' outputs and files apart.
RANK = ('rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; [ "$rank" = 0 ] || exec >"$0/rank$rank" 2>&1; '
        'exec "$@" --basetemp="$0/tmp$rank" '
        '--junitxml="$0/results$rank.xml"')


class Stage(NamedTuple):
    """One command of the suite, in one environment; ``logs`` is where it and its ranks write."""

    title: str
    bin: Path
    command: list[str]
    logs: Path


def mpiexec(bin: Path) -> str | None:
    """Find the launcher that belongs to the programs in ``bin``, or else the one on the path."""
    return shutil.which("mpiexec", path=f"{bin}{os.pathsep}{os.environ['PATH']}")


def settings(bin: Path) -> dict[str, str]:
    """Make the environment variables of a job that uses the programs in ``bin``."""
    # Thousands of ranks are started: each would compile the package, and pytest the tests, anew.
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("HPCCOLL_") and name != "PYTHONDONTWRITEBYTECODE"}
    # More ranks than cores: one thread each, and Open MPI wants to be asked for it.
    made = {**inherited, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            # Where the threads of a stage are, a little before its time is up.
            "TESTS_DUMP_SECONDS": str(LIMIT - 30),
            # What somebody once measured on this machine is no part of the tests.
            "HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            # Keras takes TensorFlow unless told otherwise.
            "KERAS_BACKEND": inherited.get("KERAS_BACKEND", "jax"),
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() == 0:
        made |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return made


def run(command: list[str], bin: Path, seconds: float = LIMIT, output: IO | None = None,
        cwd: Path = ROOT) -> int:
    """Run a command to its end or to the limit; return its status."""
    # In the caller's process group: what interrupts the caller ends the job too.
    process = subprocess.Popen(command, cwd=cwd, env=settings(bin), stdin=subprocess.DEVNULL,
                               stdout=output, stderr=output and subprocess.STDOUT)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        if process.poll() is None:
            process.terminate()  # mpiexec takes its ranks along
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def stages(environments: list[Path], scratch: Path) -> list[Stage]:
    """List everything to run, in order."""
    found: list[Stage] = []

    def add(title: str, bin: Path, *command: str) -> None:
        logs = scratch / f"stage{len(found)}"
        words = [word.replace(LOGS, str(logs)) for word in command]
        found.append(Stage(title, bin, words, logs))

    for environment in environments:
        bin, first = environment / "bin", environment == environments[0]
        python = str(bin / "python")
        chosen = ("-m", "not once" if not first else "not again" if environments[1:] else "")
        alone = (python, *PYTEST, "-o", f"cache_dir={LOGS}/cache", *chosen,
                 f"--junitxml={LOGS}/results0.xml")
        path = settings(bin)["PYTHONPATH"]
        absent = ("env", f"PYTHONPATH={UNCOMPILED}{os.pathsep}{path}")
        if first:
            add("no launcher", bin, *alone, *PARALLEL, "--doctest-modules",
                # Faces of frameworks that are not installed cannot be imported.
                "--doctest-ignore-import-errors", "hpccoll", "benchmarks", "tests",
                "--ignore=tests/mpi", "--ignore=tests/doc", "--ignore=tests/fault",
                "--ignore=tests/cluster", "--ignore=tests/suites", f"--ignore={UNCOMPILED}")
            add("no launcher, nothing compiled", bin, *absent, *alone, *PARALLEL, *ABSENT_ALONE)
        for size, state, variables, tests in (
                *((size, "", (), (FIRST if first else LATER)[size]) for size in SIZES),
                (2, ", python executor", ("env", "HPCCOLL_EXECUTOR=python"), INTERPRETED),
                (2, ", nothing compiled", absent, (*ABSENT, *(ABSENT_ONCE if first else ())))):
            add(f"{environment.name}, {size} ranks{state}", bin, *variables,
                str(bin / "mpiexec"), "-n", str(size), "sh", "-c", RANK, LOGS,
                # mpi4py's runner aborts the job when pytest returns a failure.
                python, "-m", "mpi4py", *PYTEST, *UNCACHED, *chosen, "-x", "-rfE", "--with-mpi",
                "--timeout-method=thread", *tests)
        add(f"{environment.name}, documentation", bin, *alone, *PAIRED,
            *(["tests/doc"] if first else STARTING))
        add(f"{environment.name}, faults", bin, *alone, *PAIRED_FILES, "tests/fault")
        add(f"{environment.name}, several hosts", bin, *alone, "tests/cluster")
        add(f"{environment.name}, mpi4py's own tests", bin, *alone, "tests/suites")
    return found


def swept() -> list[str]:
    """Remove what killed ranks have left in shared memory, which the next stage's would find."""
    left = sorted(Path("/dev/shm").glob("hpccoll-*"))
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]


def show(stage: Stage) -> None:
    """Print the end of what the ranks behind rank 0 wrote."""
    for log in sorted(stage.logs.glob("rank*")):
        lines = log.read_text(errors="replace").splitlines()
        print(f"--- {stage.title}, {log.name}", *lines[-150:], sep="\n", flush=True)


def broken(logs: Path) -> list[str]:
    """Name the tests that failed, by what pytest left in ``logs``, each once."""
    failed: dict[str, None] = {}
    for file in sorted(logs.glob("results*.xml")):
        with suppress(xml.ParseError):  # a rank that was aborted leaves an empty or a cut file
            failed |= {f"{case.get('classname')}.{case.get('name')}": None
                       for case in xml.parse(file).iter("testcase")
                       if case.find("failure") is not None or case.find("error") is not None}
    return list(failed)


def attempt(stage: Stage, failed_only: bool = False) -> tuple[int, str]:
    """Run a stage; return its status and, where that is not 0, what failed in it.

    ``failed_only`` leaves out the tests that passed, if the stage has a cache of pytest's.
    """
    if failed_only and (stage.logs / "cache").exists():
        stage.command.append("--last-failed")
    else:
        shutil.rmtree(stage.logs, ignore_errors=True)
        stage.logs.mkdir()
    status = run(stage.command, stage.bin)
    if not status:
        return 0, ""
    show(stage)
    for name in swept():
        print(f"--- {stage.title} left {name} in shared memory", flush=True)
    reason = f"ran longer than {LIMIT} s" if status == TIMED_OUT else f"status {status}"
    why = ", ".join([f"{stage.title}: {reason}", *broken(stage.logs)])
    print(f"=== FAILED {why}", flush=True)
    return status, why


def quick(stages: list[Stage]) -> list[Stage]:
    """Choose what a contributor runs before a push: no launcher, and two ranks of one MPI."""
    return [stage for stage in stages if re.fullmatch(r"no launcher|.*, 2 ranks", stage.title)][:2]


def main(environments: list[Path], results: Path | None = None,
         choose: Callable[[list[Stage]], list[Stage]] = list) -> int:
    """Run all stages; return 0 if every one of them passed, at the second time at the latest.

    Args:
        environments: to run them in.
        results: a folder for how each test ended, as files of pytest's.
        choose: from all stages, those that are run.
    """
    failed, unsteady, taken, count, start = [], [], [], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for stage in choose(stages(environments, Path(scratch))):
            print(f"=== {stage.title}", flush=True)
            begun = time.monotonic()
            status, why = attempt(stage)
            if status == TIMED_OUT:  # the second time would take as long
                failed.append(why)
            elif status:
                print(f"=== {stage.title}, once more", flush=True)
                # A folder of results takes those of every test.
                (failed if attempt(stage, not results)[0] else unsteady).append(why)
            if results and (told := stage.logs / "results0.xml").exists():
                results.mkdir(parents=True, exist_ok=True)
                shutil.move(told, results / f"{count}.xml")
            count += 1
            taken.append(f"{time.monotonic() - begun:5.0f} s  {stage.title}")
    seconds = time.monotonic() - start
    print("=== where the time went", *taken, sep="\n    ")
    if unsteady:
        print("=== failed once and passed the second time", *unsteady, sep="\n    ")
    verdict = f"{len(failed)} of {count} stages FAILED" if failed else f"all {count} stages passed"
    print(f"=== hpccoll tests: {verdict} in {seconds:.0f} s", *failed, sep="\n    ")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--results", type=Path, help="a folder for how each test ended")
    words.add_argument("environments", type=lambda name: Path(name).resolve(), nargs="+")
    words.add_argument("--quick", action="store_true", help="no launcher, and two ranks of one MPI")
    options = words.parse_args()
    sys.exit(main(options.environments, options.results, quick if options.quick else list))
