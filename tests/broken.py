"""Break the build on purpose, one place at a time, and see the tests fail.

    python tests/broken.py [-k WORD] ENVIRONMENT

A test that cannot fail proves nothing. Each line of ``breaks.py`` names an edit of the sources and
tests that must notice it. The tree is copied; in the copy the tests pass first, then the edit is
made, C is built where it is C, and all tests of the line must fail, or not come to an end. With
several ranks the first test that fails ends the job, so those lines name one test. Prints a line
for each break; the status says whether all were noticed. ``make broken`` runs it on MPICH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launch
from breaks import BREAKS, Break

from support.edits import read

#: What is copied, and what is not.
PARTS = ("hpccoll", "tests", "docs", "examples", "benchmarks", "setup.py", "setup.cfg",
         "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "Makefile")
#: Seconds until tests that hang are taken to have failed.
LIMIT = 100.0
NOTICED, UNNOTICED, WRONG = "noticed", "NOT NOTICED", "CANNOT BE TRIED"


def copied(tree: Path) -> None:
    """Copy what tests need, compiled extensions included."""
    for part in PARTS:
        source = launch.ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, tree / part)


def build(tree: Path, bin: Path) -> None:
    """Build the extensions of a tree where it lies."""
    subprocess.run([bin / "python", "setup.py", "-q", "build_ext", "--inplace", "--force"],
                   cwd=tree, check=True, capture_output=True)


def outcome(one: Break, tree: Path, bin: Path) -> str:
    """What pytest printed; ``hangs`` where it did not come to its end."""
    path, _, word = one.tests.partition(" -k ")
    command = [str(bin / "python"), *(["-m", "mpi4py"] if one.ranks else []), *launch.PYTEST,
               *(["-x", "--with-mpi", "--timeout-method=thread"] if one.ranks else []), "-rf",
               path, "-k", word]
    logs = tree / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    if one.ranks:
        command = [str(launch.mpiexec(bin)), "-n", str(one.ranks), "sh", "-c", launch.RANK,
                   str(logs), *command]
    # Without bytecode: that of a break would be taken for the source that is put back within the
    # same second, in the same length.
    environment = {**launch.settings(bin), "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output)
        try:
            process.wait(LIMIT)
            end = ""
        except subprocess.TimeoutExpired:
            end = "\nhangs\n"
            process.terminate()  # mpiexec takes its ranks along
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        output.seek(0)
        others = "".join(log.read_text(errors="replace") for log in sorted(logs.glob("rank*")))
        return others + output.read().decode(errors="replace") + end


def failed(text: str) -> bool:
    """Tell whether tests failed, and none passed beside them where each was run."""
    if text.endswith("\nhangs\n") or "*** rank" in text or "Timeout" in text:
        return True
    return re.search(r"\b\d+ failed", text) is not None and not re.search(r"\b\d+ passed", text)


def passed(text: str) -> bool:
    """Tell whether some tests ran, and all of them passed."""
    return re.search(r"\b\d+ passed", text) is not None and "failed" not in text and (
        not text.endswith("\nhangs\n"))


def tried(one: Break, tree: Path, bin: Path, good: dict[tuple[str, int], bool]) -> tuple[str, str]:
    """Break a tree, run the tests, mend it; what came of it, and what was printed."""
    key = one.tests, one.ranks
    if key not in good:
        text = outcome(one, tree, bin)
        good[key] = passed(text)
        if not good[key]:
            return WRONG, f"the tests do not pass without the break\n{text}"
    sources = read(tree)
    changed: dict[Path, str] = {}
    try:
        for edit in filter(None, (one.edit, one.also)):
            path, text = edit.made({**sources, **changed})
            changed[path] = text
    except LookupError as error:
        return WRONG, str(error)
    compiled = any(path.suffix in (".c", ".h") for path in changed)
    try:
        for path, text in changed.items():
            (tree / path).write_text(text, encoding="utf-8")
        if compiled:
            build(tree, bin)
        text = outcome(one, tree, bin)
    finally:
        for path in changed:
            (tree / path).write_text(sources[path], encoding="utf-8")
        if compiled:
            build(tree, bin)
    return (NOTICED if failed(text) else UNNOTICED), text


def main() -> int:
    """Try the breaks; the status says whether each was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path, help="a virtual environment with one MPI")
    parser.add_argument("-k", default="", metavar="WORD", help="only breaks with it in their words")
    options = parser.parse_args()
    bin = options.environment.absolute() / "bin"
    chosen = [one for one in BREAKS if options.k in one.what]
    good: dict[tuple[str, int], bool] = {}
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        copied(tree)
        for one in chosen:
            start = time.monotonic()
            verdict, text = tried(one, tree, bin, good)
            print(f"{verdict:<15} {time.monotonic() - start:4.0f} s  {one.what}: {one.tests}",
                  flush=True)
            if verdict != NOTICED:
                missed += 1
                print("    " + "\n    ".join(text.splitlines()[-25:]), flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} breaks noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
