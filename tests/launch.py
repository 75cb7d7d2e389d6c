"""Run the stages of a level on every MPI: ``python tests/launch.py LEVEL ENVIRONMENT...``

A level is ``test``, ``check`` or ``long``. An environment is a virtual environment that holds one
MPI. ``STAGES`` lists all stages with their level, their budget in seconds on two idle cores, the
environment they run in, and their tests:

* what needs no launcher - units, laws, golden texts, doctests - once, in the first environment;
* ``tests/mpi`` and ``tests/contract`` on real ranks. Every file runs on two ranks of the first
  environment. Those in which the number of ranks or the MPI library matters run on others, too;
* samples of both with the Python executor, and without the compiled parts, as they are where no
  compiler was found;
* ``tests/doc``, ``tests/fault``, ``tests/cluster`` and ``tests/suites``, whose tests launch ranks
  themselves.

``test`` needs no framework and leaves out tests marked ``slow``; ``check`` has those, and the rest
with frameworks; ``long`` has tests marked ``long`` and ``bare``, and writes docs/data/long.json.
Tests marked ``once`` run in the first environment only, those marked ``again`` in the second.

On real ranks, rank 0 writes to the screen and the others to files, shown when a stage fails. The
first rank that fails aborts its whole job, so that no rank waits for it, and every stage has a
hard time limit on top. A stage that fails is run once more, without a launcher only the tests that
failed: where other work shares the machine, a rank may come later than a test's deadline allows.
The last lines name every test that failed, also where the second run passed, and every stage over
its budget by half. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import resource
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

import long_record

ROOT = Path(__file__).resolve().parent.parent


def files(*names: str) -> tuple[str, ...]:
    """The files of tests on real ranks of such names, which may be patterns."""
    return tuple(str(path.relative_to(ROOT)) for name in names
                 for path in sorted((ROOT / "tests" / "mpi").glob(f"test_{name}.py")))


def without(*files: str) -> tuple[str, ...]:
    """What makes pytest leave files out."""
    return tuple(f"--ignore={file}" for file in files)


def except_for(tests: tuple[str, ...]) -> tuple[str, ...]:
    """What makes pytest leave tests out that ``make test`` has run."""
    return tuple(f"--deselect={test}" for test in tests)


ALL = ("tests/mpi", "tests/contract")
#: What needs PyTorch, JAX or Keras, and training that takes long without them.
FRAMEWORKS = files("bench_step", "bench_torch", "jax*", "keras", "torch_*", "averaging", "compress",
                   "exchange*", "shard")
#: Device memory, which a double stands for where there is no GPU.
DEVICES = files("device_segments", "gpu_*", "host_buffers", "ipc", "nccl", "promise",
                "registered_tensors", "staged*")
#: Commands, measurements, and what takes thousands of calls.
TOOLS = files("bench", "bench_fresh", "calibrate", "discover", "doctor", "probe", "profile", "run",
              "survey", "topo", "tune", "leaks", "many")
#: On two ranks: everything else is in ``test``, so that a new file is there, too.
CHECKED = (*FRAMEWORKS, *DEVICES, *TOOLS)
#: What depends on the number of ranks alone: algorithms and layouts. Where a processor serves
#: several ranks, every message waits for its turn, so that nothing else runs on many of them.
BY_SIZE = files("determinism", "discover", "placement", "calls")
#: What depends on it as well: who is a minority, who is a neighbour, what a group leaves out.
MORE = (*BY_SIZE, "tests/contract/test_messages.py", *files(
    "brought", "cache", "communicators", "compiled", "contract", "groups", "half", "numbers",
    "objects_messages", "registered", "requests", "sequences", "threads"))
#: The same for what ``check`` leaves to itself, and what three ranks show less often.
THREE = (*files("request_errors", "broken", "mpi4py_names", "objects", "objects_errors", "uneven",
                "averaging", "compress", "exchange*", "shard", "torch_group", "torch_peers"),
         "tests/mpi/test_nccl.py::test_unlike_nodes_are_refused")
#: What three ranks show hardly ever.
THREE_MORE = files("jax", "profile", "survey", "torch_hooks", "torch_horovod", "torch_optimizer",
                   "torch_scaler", "torch_training", "tune")
#: Any rank may be the one that differs from many others.
MANY = (*BY_SIZE, *files("late"),
        "tests/mpi/test_contract.py::test_every_rank_learns_who_differs")
#: What an MPI library decides, and not arithmetic, a framework or our own code.
LIBRARY = (*files("calls", "derived", "requests", "communicators", "threads", "first_call",
                  "mpi4py_names", "objects"), "tests/contract")
#: What it decides a part of: errors of arguments, threads inside of it, and starting programs.
LIBRARY_TOO = files("argument*", "brought", "broken", "contract", "doctor", "groups", "exchange",
                    "late", "leaks", "objects_*", "request_errors", "run", "sequences",
                    "torch_group", "torch_run", "uneven")
#: Decided by arithmetic, a framework or our own code, and not by the MPI library.
ONCE = files("averaging", "bench_step", "compress", "exchange_errors", "jax*", "keras", "probe",
             "survey", "torch_accuracy", "torch_tools")
#: One fault of each kind, of tests that start jobs.
FAULTS = tuple(f"tests/fault/test_{name}" for name in (
    "faults.py::test_a_killed_rank", "faults.py::test_a_stopped_rank",
    "faults.py::test_a_rank_that_crashes", "faults.py::test_a_rank_that_leaves_early",
    "faults.py::test_one_rank_in_the_library_and_the_others_in_ours", "missing.py",
    "endings.py::test_one_rank_ends_while_the_others_wait"))
#: In this order one processor runs PyTorch's, which take longest, and the other one the rest.
ALL_FAULTS = tuple(str(path.relative_to(ROOT))
                   for path in sorted((ROOT / "tests/fault").glob("test_*.py"), reverse=True))
#: What an MPI library decides of faults: whether jobs go on, signals, and its own calls.
FAULTS_OF_LIBRARY = ("tests/fault/test_recovery.py", *(
    f"tests/fault/{name}" for name in (
        "test_endings.py::test_signals_leave_a_wait_at_once",
        "test_endings.py::test_a_fatal_error_handler_ends_the_job_for_an_argument",
        "test_faults.py::test_a_killed_rank_in_other_forms_of_the_librarys_calls",
        "test_torch_endings.py::test_the_other_rank_has_ended")))
#: The README as written, and examples of the three ways to write a program.
SHOWN = ("tests/doc/test_pages.py::test_page[README.md]", *(
    f"tests/doc/test_examples.py::test_example[{name}]"
    for name in ("custom_algorithm", "drop_in", "power_iteration")))
#: Of the documentation, what starts ranks; the rest is the same with every MPI library.
STARTING = tuple(f"tests/doc/test_{name}.py" for name in ("pages", "progress", "run"))
#: A sample for the interpreter, where most of the others run compiled.
INTERPRETED = files("sequences", "registered")
#: Takes the compiled parts away when it is on PYTHONPATH; samples for that, which need no launcher,
#: and run on ranks.
UNCOMPILED = ROOT / "tests" / "uncompiled"
ABSENT_ALONE = (*(f"tests/unit/{part}" for part in (
    "arrays", "comm", "guard", "runtime", "simulator/test_simulator.py")),
    # No part of which is compiled, or only what it is compared with.
    *without(*(f"tests/unit/cuda/test_{name}.py" for name in ("kernels", "device_order"))))
ABSENT = ("tests/uncompiled", *files("calls", "half", "requests"))
#: What needs no launcher. Faces of frameworks that are not installed cannot be imported.
UNITS = ("--doctest-modules", "--doctest-ignore-import-errors", "hpccoll", "benchmarks", "tests",
         "--ignore=tests/mpi", "--ignore=tests/doc", "--ignore=tests/fault",
         "--ignore=tests/cluster", "--ignore=tests/suites", f"--ignore={UNCOMPILED}")
#: Of these, what runs otherwise where frameworks are installed.
UNITS_OF_FRAMEWORKS = tuple(f"tests/unit/{part}" for part in ("torch", "jax"))
#: Stands for the folder of a stage in its command.
LOGS = "{logs}"
#: The status of a stage that reached its time limit.
TIMED_OUT = 124
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
#: Environments, by their place in the command line. The last one has the last PyTorch that finds no
#: backends by their entry points.
FIRST, SECOND, OLD_TORCH = range(3)
TEST, CHECK, LONG = LEVELS = ("test", "check", "long")


class Row(NamedTuple):
    """A stage, before its environment is known.

    Attributes:
        level: that it belongs to.
        budget: seconds on two idle cores.
        where: the environment it runs in, if there are as many.
        title: what it is; with ranks, what differs from others on as many.
        tests: words for pytest.
        ranks: that run the tests; 0 where they need no launcher.
        marks: of the tests that run, as pytest's ``-m``.
        variables: words that change the environment, of env's.
    """

    level: str
    budget: int
    where: int
    title: str
    tests: tuple[str, ...]
    ranks: int = 0
    marks: str = ""
    variables: tuple[str, ...] = ()


#: Tests marked ``long`` and the others.
EVERYTHING = "(long or not long)"
PYTHON_EXECUTOR, NOT_COMPILED = ("HPCCOLL_EXECUTOR=python",), ("PYTHONPATH={uncompiled}",)
STAGES = (
    Row(TEST, 115, FIRST, "no launcher", (*PARALLEL, *UNITS), 0, "not slow"),
    Row(TEST, 120, FIRST, "", (*ALL, *without(*CHECKED)), 2, "not slow"),
    Row(TEST, 100, FIRST, "", MORE, 3, "not slow"),
    Row(TEST, 20, FIRST, "", MANY, 5, "not slow"),
    Row(TEST, 30, FIRST, ", python executor", INTERPRETED, 2, "", PYTHON_EXECUTOR),
    Row(TEST, 60, SECOND, "", LIBRARY, 2, "not slow"),
    Row(TEST, 50, FIRST, "faults", (*PAIRED, "--patient", *FAULTS)),
    Row(TEST, 25, FIRST, "README and examples", (*PAIRED, *SHOWN)),

    Row(CHECK, 120, FIRST, "no launcher, slow tests", (*PARALLEL, *UNITS), 0, "slow"),
    Row(CHECK, 20, FIRST, "no launcher, frameworks", (*PARALLEL, *UNITS_OF_FRAMEWORKS)),
    Row(CHECK, 20, FIRST, "no launcher, nothing compiled", (*PARALLEL, *ABSENT_ALONE), 0,
        "not slow", NOT_COMPILED),
    Row(CHECK, 40, FIRST, ", nothing compiled", ABSENT, 2, "", NOT_COMPILED),
    Row(CHECK, 150, FIRST, ", frameworks, devices and tools", CHECKED, 2),
    Row(CHECK, 40, FIRST, ", slow tests", (*ALL, *without(*CHECKED)), 2, "slow"),
    Row(CHECK, 20, FIRST, ", slow tests", MORE, 3, "slow"),
    Row(CHECK, 20, SECOND, ", slow tests", LIBRARY, 2, "slow"),
    Row(CHECK, 30, FIRST, "", MORE, 1),
    Row(CHECK, 90, FIRST, ", what is in no other stage", THREE, 3, "not slow"),
    Row(CHECK, 20, FIRST, "", (
        *files("exchange", "groups"),
        "tests/mpi/test_nccl.py::test_nccl_inside_nodes_and_ours_across"), 4),
    Row(CHECK, 40, FIRST, "", MANY, 8),
    Row(CHECK, 60, SECOND, ", what depends on the library less", LIBRARY_TOO, 2, "not slow"),
    Row(CHECK, 60, SECOND, "",
        (*BY_SIZE, *files("communicators", "contract", "groups", "requests")), 4),
    Row(CHECK, 140, FIRST, "documentation", (*PAIRED, "tests/doc", *except_for(SHOWN[1:]))),
    Row(CHECK, 80, SECOND, "documentation", (*PAIRED, *STARTING)),
    Row(CHECK, 130, FIRST, "faults", (
        *PAIRED_FILES, "--no-loadscope-reorder", *ALL_FAULTS, *except_for(FAULTS))),
    Row(CHECK, 100, SECOND, "faults", (*PAIRED_FILES, *FAULTS, *FAULTS_OF_LIBRARY)),
    Row(CHECK, 120, FIRST, "several hosts", ("tests/cluster",)),
    Row(CHECK, 120, FIRST, "mpi4py's own tests", ("tests/suites",)),

    Row(LONG, 600, FIRST, "no launcher, long tests", (*PARALLEL, *UNITS), 0, "long"),
    Row(LONG, 300, FIRST, "documentation, long tests", (*PAIRED, "tests/doc"), 0, "long"),
    Row(LONG, 120, FIRST, ", long tests", ALL, 2, "long"),
    Row(LONG, 100, FIRST, "", BY_SIZE, 4),
    Row(LONG, 100, FIRST, ", what is in no other stage", THREE_MORE, 3),
    Row(LONG, 200, SECOND, "", MORE, 1),
    Row(LONG, 200, SECOND, ", what is in no other stage",
        (*ALL, *without(*ONCE, *DEVICES, *LIBRARY)), 2),
    Row(LONG, 200, SECOND, "", BY_SIZE, 3),
    Row(LONG, 200, SECOND, "", MORE, 4),
    Row(LONG, 200, SECOND, "", MANY, 5),
    Row(LONG, 200, SECOND, "", MANY, 8),
    Row(LONG, 200, SECOND, ", python executor", INTERPRETED, 2, "", PYTHON_EXECUTOR),
    Row(LONG, 200, SECOND, ", nothing compiled", ABSENT, 2, "", NOT_COMPILED),
    Row(LONG, 300, SECOND, "faults", (*PAIRED_FILES, "tests/fault"), 0, EVERYTHING),
    Row(LONG, 300, FIRST, "faults, long tests", (*PAIRED_FILES, "tests/fault"), 0, "long"),
    Row(LONG, 200, SECOND, "several hosts", ("tests/cluster",), 0, EVERYTHING),
    Row(LONG, 100, FIRST, "several hosts, long tests", ("tests/cluster",), 0, "long"),
    Row(LONG, 150, OLD_TORCH, ", PyTorch", files("torch_*"), 2),
    Row(LONG, 300, FIRST, "mpi4py's own tests", ("tests/suites",), 0, "long"),
    Row(LONG, 450, SECOND, "mpi4py's own tests", ("tests/suites",), 0, EVERYTHING),
    Row(LONG, 480, FIRST, "README and wheel in bare environments", (
        *PAIRED_FILES, "--bare", "tests/doc/test_bare.py", "tests/doc/test_wheel.py")),
)


class Stage(NamedTuple):
    """A command, in one environment; ``logs`` is where it and its ranks write."""

    title: str
    bin: Path
    command: list[str]
    logs: Path
    budget: int = 100

    @property
    def limit(self) -> float:
        """Seconds until the stage is ended: other work may share the machine."""
        return 8 * self.budget + 300


class Outcome(NamedTuple):
    """How a stage ended: its status, why that is not 0, and the tests that failed in it."""

    status: int
    why: str = ""
    tests: tuple[str, ...] = ()


def mpiexec(bin: Path) -> str | None:
    """Find the launcher that belongs to the programs in ``bin``, or else the one on the path."""
    return shutil.which("mpiexec", path=f"{bin}{os.pathsep}{os.environ['PATH']}")


#: Not passed on to tests. Thousands of ranks are started: without bytecode each would compile the
#: package, and pytest the tests, anew. Unbuffered output would hide that output is lost.
NOT_PASSED_ON = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


def settings(bin: Path) -> dict[str, str]:
    """Make the environment variables of a job that uses the programs in ``bin``."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("HPCCOLL_") and name not in NOT_PASSED_ON}
    # More ranks than cores: one thread each, and Open MPI wants to be asked for it.
    made = {**inherited, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            # What somebody once measured on this machine is no part of the tests.
            "HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            # Keras takes TensorFlow unless told otherwise.
            "KERAS_BACKEND": inherited.get("KERAS_BACKEND", "jax"),
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() == 0:
        made |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return made


def run(command: list[str], bin: Path, seconds: float, output: IO | None = None,
        cwd: Path = ROOT, **variables: str) -> int:
    """Run a command to its end or to the limit; return its status."""
    # In the caller's process group: what interrupts the caller ends the job too.
    process = subprocess.Popen(command, cwd=cwd, env={**settings(bin), **variables},
                               stdin=subprocess.DEVNULL, stdout=output,
                               stderr=output and subprocess.STDOUT)
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


def stages(level: str, environments: list[Path], scratch: Path) -> list[Stage]:
    """List what a level runs, in order."""
    found: list[Stage] = []
    for row in (row for row in STAGES if row.level == level and row.where < len(environments)):
        environment = environments[row.where]
        bin, logs = environment / "bin", scratch / f"stage{len(found)}"
        python = str(bin / "python")
        here = "not once" if row.where else "not again" if environments[1:] else ""
        words: tuple[str, ...] = (python, *PYTEST, "-m",
                                  " and ".join(filter(None, [row.marks, here])))
        title = f"{environment.name}, {row.title}"
        if row.ranks:
            title = f"{environment.name}, {row.ranks} ranks{row.title}"
            # mpi4py's runner aborts the job when pytest returns a failure.
            words = (str(bin / "mpiexec"), "-n", str(row.ranks), "sh", "-c", RANK, str(logs),
                     python, "-m", "mpi4py", *words[1:], *UNCACHED, "-x", "-rfE", "--with-mpi",
                     "--timeout-method=thread")
        else:
            words += ("-o", f"cache_dir={logs}/cache", f"--junitxml={logs}/results0.xml")
        path = f"{UNCOMPILED}{os.pathsep}{settings(bin)['PYTHONPATH']}"
        variables = [word.format(uncompiled=path) for word in row.variables]
        command = [*(["env", *variables] if variables else []), *words, *row.tests]
        found.append(Stage(title, bin, command, logs, row.budget))
    return found


def processor_seconds() -> float:
    """What all programs that have ended have used of the processors, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def broken(logs: Path) -> tuple[str, ...]:
    """Name the tests that failed, by what pytest left in ``logs``, each once."""
    failed: dict[str, None] = {}
    for file in sorted(logs.glob("results*.xml")):
        with suppress(xml.ParseError):  # a rank that was aborted leaves an empty or a cut file
            failed |= {f"{case.get('classname')}.{case.get('name')}": None
                       for case in xml.parse(file).iter("testcase")
                       if case.find("failure") is not None or case.find("error") is not None}
    return tuple(failed)


def attempt(stage: Stage, failed_only: bool = False) -> Outcome:
    """Run a stage; ``failed_only`` leaves out tests that passed, if it has a cache of pytest's."""
    if failed_only and (stage.logs / "cache").exists():
        stage.command.append("--last-failed")
    else:
        shutil.rmtree(stage.logs, ignore_errors=True)
        stage.logs.mkdir()
    # Where the threads of a stage are, a little before its time is up.
    status = run(stage.command, stage.bin, stage.limit,
                 TESTS_DUMP_SECONDS=str(stage.limit - 30))
    if not status:
        return Outcome(0)
    show(stage)
    for name in swept():
        print(f"--- {stage.title} left {name} in shared memory", flush=True)
    reason = f"ran longer than {stage.limit:.0f} s" if status == TIMED_OUT else f"status {status}"
    tests = broken(stage.logs)
    why = ", ".join([f"{stage.title}: {reason}", *tests])
    print(f"=== FAILED {why}", flush=True)
    return Outcome(status, why, tests)


def quick(stages: list[Stage]) -> list[Stage]:
    """Choose what a contributor runs before a push: no launcher, and two ranks of one MPI."""
    return stages[:2]


def main(level: str, environments: list[Path], results: Path | None = None,
         choose: Callable[[list[Stage]], list[Stage]] = list) -> int:
    """Run the stages of a level; return 0 if all passed, at the second time at the latest.

    Args:
        level: of ``LEVELS``.
        environments: to run them in.
        results: a folder for how each test ended, as files of pytest's.
        choose: from the stages, those that are run.
    """
    failed, unsteady, slow, taken, start = [], [], [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for stage in choose(stages(level, environments, Path(scratch))):
            print(f"=== {stage.title} (budget {stage.budget} s)", flush=True)
            begun, used = time.monotonic(), processor_seconds()
            outcome, passed = attempt(stage), True
            if outcome.status:
                again = outcome  # the second time would take as long
                if outcome.status != TIMED_OUT:
                    print(f"=== {stage.title}, once more", flush=True)
                    # A folder of results takes those of every test.
                    again = attempt(stage, not results)
                passed = not again.status
                if passed:
                    unsteady.append(outcome.why)
                else:
                    failed.append(outcome.why)
            if results and (told := stage.logs / "results0.xml").exists():
                results.mkdir(parents=True, exist_ok=True)
                shutil.move(told, results / f"{len(taken)}.xml")
            seconds = time.monotonic() - begun
            taken.append(long_record.Entry(stage.title, round(seconds), stage.budget,
                                           round(processor_seconds() - used), passed))
            if seconds > 1.5 * stage.budget:
                slow.append(f"{stage.title}: {seconds:.0f} s, budget {stage.budget} s")
    seconds = time.monotonic() - start
    print("=== where the time went", "  time  budget  processors",
          *(f"{one.seconds:4d} s  {one.budget:4d} s  {one.processors:8d} s  {one.stage}"
            for one in taken), sep="\n    ")
    if level == LONG:
        long_record.write(taken)
    if slow:
        print("=== WARNING: over budget by half", *slow, sep="\n    ")
    if unsteady:
        print("=== WARNING: failed once and passed the second time", *unsteady, sep="\n    ")
    count = len(taken)
    verdict = f"{len(failed)} of {count} stages FAILED" if failed else f"all {count} stages passed"
    budget = sum(one.budget for one in taken)
    print(f"=== hpccoll make {level}: {verdict} in {seconds:.0f} s, budget {budget} s, "
          f"processors {processor_seconds():.0f} s", *failed, sep="\n    ")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("level", choices=LEVELS)
    words.add_argument("environments", type=lambda name: Path(name).resolve(), nargs="+")
    words.add_argument("--results", type=Path, help="a folder for how each test ended")
    words.add_argument("--quick", action="store_true", help="no launcher, and two ranks of one MPI")
    options = words.parse_args()
    sys.exit(main(options.level, options.environments, options.results,
                  quick if options.quick else list))
