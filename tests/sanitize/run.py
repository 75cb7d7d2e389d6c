"""The compiled executor under the sanitizers of the compiler: ``make sanitize``.

    python tests/sanitize/run.py [--rounds N]

For AddressSanitizer and ThreadSanitizer each, where the compiler has it:

* ``channels.c``, the stress of the channels, with the executor and without an interpreter;
* the extension modules, built anew in a copy of the tree, and with them the tests of the executor
  and of the simulator's compiled loop.

The second finds what is wrong in what serves Python, and in threads that work without the
interpreter's lock. It cannot find words of channels that are published in the wrong order, since
that lock orders the threads: the first one does. The status is 0 if nothing was found. Where the
compiler has neither nothing is checked: the last line says so, and the status is 0, since CI has to
pass on such machines, as it does where other tests are skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
RUNTIME, KERNELS = ROOT / "hpccoll/runtime/execution", ROOT / "hpccoll/arrays"
SANITIZERS = ("address", "thread")
#: What the sanitized extensions run in the copy, and what of the tree that takes.
TESTS = ("tests/unit/runtime/execution/test_compiled.py",
         "tests/unit/runtime/execution/test_compiled_errors.py",
         "tests/unit/runtime/execution/test_compiled_operations.py",
         "tests/unit/runtime/events/test_call_records.py",
         "tests/unit/runtime/events/test_phase_events.py", "tests/unit/arrays/test_half.py",
         *(f"tests/unit/simulator/test_compiled_loop.py::{name}" for name in (
             "test_faults_are_the_same", "test_python_is_told_and_may_stop",
             "test_every_algorithm[allreduce-ragged]", "test_every_algorithm[alltoall-segments]",
             "test_every_algorithm[scan-posting]", "test_every_algorithm[bcast-torus]")))
PARTS = ("hpccoll", "tests", "examples", "setup.py", "setup.cfg", "pyproject.toml",
         "README.md", "LICENSE")
#: Rounds of every pattern: two million messages, half a minute of the processors.
ROUNDS = 34_000
#: Interpreters lose memory at their end. UCX, which MPICH brings, replaces ``madvise``, which a new
#: thread calls before ThreadSanitizer knows of it: without this the first thread crashes.
SETTINGS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1",
            "UCX_MEM_EVENTS": "no"}


def compiler() -> list[str]:
    """The C compiler as words; empty where there is none."""
    words = os.environ.get("CC", "cc").split()
    return words if shutil.which(words[0]) else []


def has(sanitizer: str, scratch: Path) -> bool:
    """Tell whether the compiler has a sanitizer, and what it needs at run time."""
    source, program = scratch / "empty.c", scratch / "empty"
    source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    return bool(compiler()) and all(
        subprocess.run(words, capture_output=True, check=False).returncode == 0
        for words in ([*compiler(), f"-fsanitize={sanitizer}", str(source), "-o", str(program)],
                      [str(program)]))


def build_stress(sanitizer: str, target: Path, runtime: Path = RUNTIME) -> None:
    """Compile the stress of the channels with the executor that is in a folder."""
    headers = [runtime, KERNELS, Path(sysconfig.get_paths()["include"]), Path(numpy.get_include())]
    subprocess.run(
        [*compiler(), "-std=gnu11", "-O1", "-g", f"-fsanitize={sanitizer}", "-Wno-tsan", "-pthread",
         *(f"-I{folder}" for folder in headers), str(ROOT / "tests/sanitize/channels.c"),
         str(runtime / "_running.c"), "-o", str(target)], check=True)


def stress(sanitizer: str, scratch: Path, rounds: int) -> int:
    """Build and run the stress; return its status."""
    program = scratch / f"channels-{sanitizer}"
    build_stress(sanitizer, program)
    return subprocess.run([str(program), str(rounds)], env={**os.environ, **SETTINGS},
                          check=False).returncode


def extensions(sanitizer: str, scratch: Path) -> int:
    """Build the extension modules in a copy, and run the executor's tests; return the status."""
    copy = scratch / sanitizer
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name,
                            ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, copy / name)
    flag = f"-fsanitize={sanitizer}"
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, check=False,
        env={**os.environ, "CFLAGS": f"{flag} -g", "LDFLAGS": flag})
    if built.returncode or len(list(copy.glob("hpccoll/**/*.so"))) < 3:
        return built.returncode or 1
    library = subprocess.run([*compiler(), f"-print-file-name=lib{sanitizer[0]}san.so"],
                             capture_output=True, text=True, check=True).stdout.strip()
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], cwd=copy,
        env={**os.environ, **SETTINGS, "LD_PRELOAD": library, "PYTHONPATH": "."},
        check=False).returncode


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--rounds", type=int, default=ROUNDS, help="of every pattern of messages")
    rounds, failed, checked = words.parse_args().rounds, [], False
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for sanitizer in SANITIZERS:
            if not has(sanitizer, scratch):
                print(f"=== {sanitizer}: the C compiler does not have it", flush=True)
                continue
            checked = True
            for title, run in (("channels", lambda: stress(sanitizer, scratch, rounds)),
                               ("extensions", lambda: extensions(sanitizer, scratch))):
                print(f"=== {sanitizer}: {title}", flush=True)
                begun = time.monotonic()
                status = run()
                print(f"=== {sanitizer}: {title}: "
                      f"{'FAILED, status ' + str(status) if status else 'nothing found'}, "
                      f"{time.monotonic() - begun:.0f} s", flush=True)
                failed += [title] * bool(status)
    if not checked:
        print("NOTHING WAS CHECKED: install a C compiler with -fsanitize=address or thread")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
