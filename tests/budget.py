"""Print the lines of each room of the package beside its budget: ``python tests/budget.py``

Docstrings and comments count, blank lines are free; ``C`` is C and CUDA in all rooms. A room above
its budget is an error: delete as much as was added, or raise the budget in a commit that says why.
The same for the folders of tests, whose lines are all counted, and their files.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "hpccoll"
#: Most lines, by room; ``hpccoll`` is the package's own modules.
BUDGET = {
    "C": 6888,
    "algorithms": 3821, "arrays": 1061, "calls": 1559, "cli": 2677, "comm": 4885, "config": 323,
    "cuda": 2599, "errors": 636, "explain": 1324, "guard": 2721, "hpccoll": 544, "ir": 2100,
    "jax": 736, "keras": 273, "machine": 867, "measure": 2697, "proof": 1284, "runtime": 3981,
    "simulator": 3351, "testing": 816, "tools": 5242, "torch": 3659, "training": 7662,
    "transport": 1481, "tune": 2100}
#: Most lines and files of Python, by folder of the tests; ``tests`` is its own modules.
TEST_BUDGET = {
    "benchmarks": (984, 14),
    "cluster": (1338, 12),
    "contract": (907, 6),
    "doc": (2532, 31),
    "fault": (1864, 13),
    "golden": (228, 2),
    "gpu": (750, 7),
    "law": (386, 5),
    "mpi": (16360, 97),
    "sanitize": (196, 2),
    "scale": (694, 9),
    "suites": (85, 1),
    "support": (6261, 49),
    "tests": (1997, 9),
    "uncompiled": (94, 2),
    "unit": (29483, 187)}
SUFFIXES = {".c", ".h", ".cu"}


def count() -> Counter[str]:
    """The lines of every room that are not blank."""
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.*"):
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else path.stem
        if path.suffix in SUFFIXES:
            room = "C"
        elif path.suffix != ".py":
            continue
        rooms[room if room in BUDGET else "hpccoll"] += sum(
            bool(line.strip()) for line in path.read_text("utf-8").splitlines())
    return rooms


def count_tests() -> dict[str, tuple[int, int]]:
    """The lines and files of every folder of the tests."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in TESTS.rglob("*.py"):
        folder = [*path.relative_to(TESTS).parts[:-1], "tests"][0]
        lines[folder] += path.read_text("utf-8").count("\n")
        files[folder] += 1
    return {folder: (lines[folder], files[folder]) for folder in sorted(lines)}


def main() -> int:
    """Print the tables; return 1 if a room or a folder of tests is above its budget."""
    found = count()
    above = [room for room in sorted(found) if found[room] > BUDGET[room]]
    print("room        lines  budget")
    for room in sorted(BUDGET):
        print(f"{room:11s} {found[room]:5d}  {BUDGET[room]:6d}{'  <- above' * (room in above)}")
    print(f"{'all':11s} {sum(found.values()):5d}  {sum(BUDGET.values()):6d}")
    print("\ntests        lines  budget  files  budget")
    for folder, (lines, files) in count_tests().items():
        most = TEST_BUDGET.get(folder, (0, 0))
        high = lines > most[0] or files > most[1]
        above += [folder] * high
        print(f"{folder:11s} {lines:6d}  {most[0]:6d} {files:6d}  {most[1]:6d}"
              f"{'  <- above' * high}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
