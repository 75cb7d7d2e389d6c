"""Print the code lines of each room of the package beside its budget: ``python tests/budget.py``

Docstrings, comments and blank lines are free. A room above its budget is an error: delete as much
as was added, or raise the budget in a commit that says why. The same for the folders of tests,
whose lines are all counted, and their files.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "hpccoll"
#: Most code lines, by room; ``hpccoll`` is the package's own modules.
BUDGET = {
    "algorithms": 2852, "arrays": 773, "calls": 1205, "cli": 2210, "comm": 3777, "config": 263,
    "cuda": 1900, "errors": 330, "explain": 1090, "guard": 2027, "hpccoll": 260, "ir": 1540,
    "jax": 625, "keras": 225, "machine": 545, "measure": 2312, "proof": 1005, "runtime": 2883,
    "simulator": 2905, "testing": 640, "tools": 4318, "torch": 2880, "training": 5920,
    "transport": 1143, "tune": 1674}
#: Most lines and files of Python, by folder of the tests; ``tests`` is its own modules.
TEST_BUDGET = {
    "benchmarks": (1480, 15),
    "cluster": (1325, 12),
    "contract": (909, 6),
    "doc": (2345, 30),
    "fault": (1857, 13),
    "golden": (227, 2),
    "gpu": (750, 7),
    "law": (386, 5),
    "mpi": (16800, 93),
    "sanitize": (196, 2),
    "scale": (865, 11),
    "suites": (85, 1),
    "support": (6541, 47),
    "tests": (1887, 8),
    "uncompiled": (94, 2),
    "unit": (34815, 192)}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def count() -> Counter[str]:
    """The code lines of every room."""
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else path.stem
        rooms[room if room in BUDGET else "hpccoll"] += code_lines(path.read_text("utf-8"))
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
    print("room         code  budget")
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
