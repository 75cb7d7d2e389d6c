"""Print the code lines of each room of the package beside its budget: ``python tests/budget.py``

Docstrings, comments and blank lines are free. A room above its budget is an error: delete as much
as was added, or raise the budget in a commit that says why.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "hpccoll"
#: Most code lines, by room; ``hpccoll`` is the package's own modules.
BUDGET = {
    "algorithms": 2850, "arrays": 755, "calls": 1205, "cli": 2180, "comm": 3505, "config": 255,
    "cuda": 1900, "errors": 330, "explain": 1090, "guard": 2010, "hpccoll": 240, "ir": 1535,
    "jax": 625, "keras": 225, "machine": 545, "measure": 2270, "proof": 1005, "runtime": 2835,
    "simulator": 2905, "testing": 640, "tools": 4245, "torch": 2880, "training": 5920,
    "transport": 1145, "tune": 1665}
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


def main() -> int:
    """Print the table; return 1 if a room is above its budget."""
    found = count()
    above = [room for room in sorted(found) if found[room] > BUDGET[room]]
    print("room         code  budget")
    for room in sorted(BUDGET):
        print(f"{room:11s} {found[room]:5d}  {BUDGET[room]:6d}{'  <- above' * (room in above)}")
    print(f"{'all':11s} {sum(found.values()):5d}  {sum(BUDGET.values()):6d}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
