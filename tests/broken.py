"""Break the build on purpose, one place at a time, and see the tests fail.

    python tests/broken.py [-k WORD | --mutants N [--seed S] [--rooms A,B] [--json FILE]] ENV

A test that cannot fail proves nothing. The tree is copied; in the copy the tests pass first, then
it is edited, C is built where it is C, and the tests must fail, or not come to an end.

Without ``--mutants`` these are the breaks of ``breaks.py``, each with the tests that notice it: all
of its tests must fail. With several ranks the first test that fails ends the job, so those lines
name one test. The status says whether all were noticed.

With ``--mutants`` they are N small faults of ``support.source_mutants``, drawn by room. Each is
tried with the unit tests of its room, and then with files of ``tests/mpi`` on two ranks
(``RANKS``). A fault that survives there may be noticed elsewhere, or change nothing that matters:
the table by room, and the survivors, are for readers. ``make broken`` runs both on MPICH.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import launch
from breaks import BREAKS, Break

from support.edits import read
from support.source_mutants import KINDS, mutants

#: What is copied, and what is not.
PARTS = ("hpccoll", "tests", "docs", "examples", "benchmarks", "setup.py", "setup.cfg",
         "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "Makefile")
#: Seconds until tests that hang are taken to have failed; of a room's tests: times that of a run
#: without a fault, and some more.
LIMIT, TIMES, MORE = 100.0, 3.0, 20.0
NOTICED, UNNOTICED, WRONG = "noticed", "NOT NOTICED", "CANNOT BE TRIED"
#: Files of tests/mpi for the faults of a room, cheap ones first; some rooms start no ranks.
RANKS = {
    "algorithms": ["determinism", "calls"], "arrays": ["half", "numbers"],
    "calls": ["arguments", "argument_errors", "derived", "calls"], "cli": ["topo", "doctor"],
    "comm": ["communicators", "arguments", "requests", "request_errors", "cache", "objects_errors"],
    "cuda": ["staged_calls", "node_answers", "nccl"], "errors": ["late"], "explain": [],
    "guard": ["first_call", "broken", "flight"], "ir": ["placement"],
    "jax": ["jax_training", "jax"], "keras": ["keras"], "machine": ["discover", "topo"],
    "measure": ["probe", "profile"], "proof": [],
    "runtime": ["limits", "requests", "request_errors", "any_size", "compiled"],
    "simulator": [], "testing": [], "tools": ["doctor", "profile"],
    "torch": ["torch_group", "torch_peers", "torch_horovod", "torch_optimizer"],
    "training": ["exchange", "exchange_errors", "averaging", "groups", "shard"],
    "transport": ["registered", "limits"], "tune": ["tune"]}


class Suite(NamedTuple):
    """Words for pytest, and the number of ranks that run it; 0 where it needs no launcher."""

    words: tuple[str, ...]
    ranks: int = 0


class Fault(NamedTuple):
    """A mutant that was tried, as ``--json`` writes it."""

    room: str
    file: str
    line: int
    kind: str
    old: str
    new: str
    verdict: str = ""


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


def outcome(suite: Suite, tree: Path, bin: Path, limit: float = LIMIT) -> str:
    """What pytest printed; ``hangs`` where it did not come to its end."""
    command = [str(bin / "python"), *(["-m", "mpi4py"] if suite.ranks else []), *launch.PYTEST,
               *(["-x", "--with-mpi", "--timeout-method=thread"] if suite.ranks else []), "-rf",
               *suite.words]
    logs = tree / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    if suite.ranks:
        command = [str(launch.mpiexec(bin)), "-n", str(suite.ranks), "sh", "-c", launch.RANK,
                   str(logs), *command]
    # Without bytecode: that of a break would be taken for the source that is put back within the
    # same second, in the same length.
    environment = {**launch.settings(bin), "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output)
        try:
            process.wait(limit)
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


def tried(one: Break, tree: Path, bin: Path, good: dict[Suite, bool]) -> tuple[str, str]:
    """Break a tree, run the tests, mend it; what came of it, and what was printed."""
    path, _, word = one.tests.partition(" -k ")
    suite = Suite((path, "-k", word), one.ranks)
    if suite not in good:
        text = outcome(suite, tree, bin)
        good[suite] = passed(text)
        if not good[suite]:
            return WRONG, f"the tests do not pass without the break\n{text}"
    sources = read(tree)
    changed: dict[Path, str] = {}
    try:
        for edit in filter(None, (one.edit, one.also)):
            place, text = edit.made({**sources, **changed})
            changed[place] = text
    except LookupError as error:
        return WRONG, str(error)
    compiled = any(place.suffix in (".c", ".h") for place in changed)
    try:
        for place, text in changed.items():
            (tree / place).write_text(text, encoding="utf-8")
        if compiled:
            build(tree, bin)
        text = outcome(suite, tree, bin)
    finally:
        for place in changed:
            (tree / place).write_text(sources[place], encoding="utf-8")
        if compiled:
            build(tree, bin)
    return (NOTICED if failed(text) else UNNOTICED), text


def try_breaks(word: str, tree: Path, bin: Path) -> int:
    """Try the breaks with a word; return 1 if one was not noticed."""
    good: dict[Suite, bool] = {}
    chosen, missed = [one for one in BREAKS if word in one.what], 0
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


def suites(fault: Fault) -> Iterator[Suite]:
    """Yield the tests of a fault: those of its module first, then those of its room, on ranks."""
    unit = Path("tests/unit", *Path(fault.file).parts[1:-1])
    near = sorted(str(unit / file.name) for file in
                  (launch.ROOT / unit).glob(f"test_{Path(fault.file).stem}*.py"))
    if near:
        yield Suite(("-x", "-m", "not slow", *near))
    yield Suite(("-x", "-m", "not slow", f"tests/unit/{fault.room}"))
    if RANKS[fault.room]:
        yield Suite(("-m", "not slow", *launch.files(*RANKS[fault.room])), 2)


def sample(count: int, seed: int, rooms: Sequence[str]) -> Iterator[tuple[Fault, str]]:
    """Draw faults, as many of each room and kind as of another; yield them with the new source."""
    draw, made = random.Random(seed), {}
    for room in rooms:
        found: dict[str, list[tuple[Path, str, NamedTuple]]] = {kind: [] for kind in KINDS}
        for path in sorted((launch.ROOT / "hpccoll" / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for mutant in mutants(text):
                found[mutant.kind].append((path, text, mutant))
        made[room] = found
    for number in range(count):
        room = rooms[number % len(rooms)]
        path, text, mutant = draw.choice(made[room][draw.choice(
            [kind for kind in KINDS if made[room][kind]])])
        yield Fault(room, str(path.relative_to(launch.ROOT)), mutant.line, mutant.kind,
                    text[mutant.start:mutant.end], mutant.new), mutant.made(text)


def verdict(fault: Fault, text: str, tree: Path, bin: Path, limits: dict[Suite, float]) -> str:
    """Try a fault with its tests: whether it was noticed, or its tests cannot be run."""
    path, able = tree / fault.file, False
    before = path.read_text(encoding="utf-8")
    for suite in suites(fault):
        if suite not in limits:
            start = time.monotonic()
            usable = any(passed(outcome(suite, tree, bin, 10 * LIMIT)) for _ in range(2))
            limits[suite] = TIMES * (time.monotonic() - start) + MORE if usable else 0.0
        if not limits[suite]:
            continue
        able = True
        try:
            path.write_text(text, encoding="utf-8")
            if not passed(outcome(suite, tree, bin, limits[suite])):
                return NOTICED
        finally:
            path.write_text(before, encoding="utf-8")
    return UNNOTICED if able else WRONG


def try_mutants(count: int, seed: int, rooms: Sequence[str], file: Path | None, tree: Path,
                bin: Path) -> int:
    """Try drawn faults; print those that survive and a table, and write them to a file."""
    limits: dict[Suite, float] = {}
    results: list[Fault] = []
    for fault, text in sample(count, seed, rooms):
        start = time.monotonic()
        results.append(fault := fault._replace(verdict=verdict(fault, text, tree, bin, limits)))
        old, new = (" ".join(each.split())[:70] for each in (fault.old, fault.new))
        print(f"{fault.verdict:<15} {time.monotonic() - start:4.0f} s  {fault.file}:{fault.line}, "
              f"{fault.kind}: {old} -> {new}", flush=True)
        if file is not None:  # what was tried before an interruption counts
            file.write_text(json.dumps({"seed": seed, "faults": [
                one._asdict() for one in results]}, indent=1) + "\n", encoding="utf-8")
    tally = Counter((one.room, one.verdict) for one in results)
    print("| room | noticed | survived | cannot be tried |\n|---|---:|---:|---:|")
    for room in (*sorted({one.room for one in results}), None):
        row = [sum(number for (where, what), number in tally.items()
                   if what == each and room in (where, None))
               for each in (NOTICED, UNNOTICED, WRONG)]
        print(f"| {room or 'all'} | {' | '.join(map(str, row))} |")
    return 0


def main() -> int:
    """Try breaks or mutants; return the status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path, help="a virtual environment with one MPI")
    parser.add_argument("-k", default="", metavar="WORD", help="only breaks with it in their words")
    parser.add_argument("--mutants", type=int, metavar="N", help="draw N faults instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", type=lambda text: text.split(","), default=list(RANKS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts on mutants")
    options = parser.parse_args()
    bin = options.environment.absolute() / "bin"
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        copied(tree)
        if options.mutants is None:
            return try_breaks(options.k, tree, bin)
        return try_mutants(options.mutants, options.seed, options.rooms, options.json, tree, bin)


if __name__ == "__main__":
    sys.exit(main())
