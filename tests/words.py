"""Find words that messages, pages and docstrings do not use: ``python tests/words.py``

Messages and pages use the words of the field and plain verbs. The words of :data:`FORBIDDEN`
personify ranks and calls, or are idioms. Read are the pages of users, the examples, the job
scripts, the strings of the package, which are its messages, and the help of its commands. The first
word of a docstring of the package is a noun or a verb, not one of :data:`OPENINGS`. The name of a
function or a class is a noun or a verb, too: no participle alone, but those of :data:`PARTICIPLES`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md", "examples/*.py", "jobs/*")
#: Folders of ``docs`` that are not for users.
NOT_FOR_USERS = ("docs/internal/", "docs/data/")
FORBIDDEN = re.compile(
    r"\b(tells?|told|hears?|heard|whoever|somebody|nobody|anew|in vain|who waits|so many|of ours"
    r"|of hpccoll's|comes? to|came to|looks? on|gives? up|gave up|served by|is not one|is of no use"
    r"|is not to be trusted|did not come|under way|in place of|cannot serve|anybody|for ever)\b",
    re.IGNORECASE)
OPENINGS = ("What", "Who", "Whose", "Whom", "Where", "Whether", "How")
#: One word that is a participle by its form.
PARTICIPLE = re.compile(
    r"_*([A-Za-z]?[a-z]*(ed|ing)|told|heard|begun|given|held|kept|lost|met|made|found|sent|said|seen"
    r"|left|gone|flew|laid|hidden|bound|built|drawn|written|done|known|shown|chosen|taken|broken"
    r"|brought)")
#: Nouns and verbs of this form.
NOUNS = {"_seed", "embed", "ring", "_nothing", "nothing", "Averaging",
         "_Averaging", "binding", "Finding", "Folding", "heading", "Meeting", "ranking", "_staging",
         "_monitoring", "_opening", "opening", "pickling", "Rounding", "Setting", "_tuning"}
#: Names that stay, and why.
PARTICIPLES = {
    "distributed": "hpccoll.jax, public", "done": "public, as of concurrent.futures",
    "exchanging": "ModelAverager, public", "exposed": "TraceReport, public",
    "fetched": "Sharded, public", "Fetching": "public", "guarded": "Sharded, public",
    "included": "Horovod's", "paused": "Exchange, public", "Sharded": "public",
    "tuned": "Comm, public", "using": "Comm, public"}
#: Raised by a C source: an error class and its text.
IN_C = re.compile(r'PyErr_(?:SetString|Format)\(\s*PyExc_\w+,\s*((?:"[^"]*"\s*)+)')


class Allowed(NamedTuple):
    """A use that stays: a file, a part of the sentence, and why."""

    file: str
    sentence: str
    why: str


ALLOWED = (
    Allowed("hpccoll/guard/rank_status.py", "not heard of", "a state in flight records"),
    Allowed("hpccoll/tools/call_trace.py", "served by", "a key of timelines"),
)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the strings of a module that are no docstrings, but those of commands.

    A string without a space is a name or a key.
    """
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if (isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and ast.get_docstring(node) and not is_command(node)):
            docstrings.add(node.body[0].value)  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
                and node not in docstrings):
            yield node.lineno, node.value


def openings() -> Iterator[str]:
    """Yield the docstrings of the package that open with a question word."""
    for path in sorted((TOP / "hpccoll").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if text.split(" ")[0] in OPENINGS:
                    line = getattr(node, "lineno", 1)
                    yield f"{path.relative_to(TOP)}:{line}: opens with {text.split()[0]!r}"


def is_command(node: ast.AST) -> bool:
    """Return True if the docstring of a function is the help of a command."""
    return isinstance(node, ast.FunctionDef) and any(
        "command" in ast.unparse(decorator) for decorator in node.decorator_list)


def participles() -> Iterator[str]:
    """Yield the functions and classes whose name is a participle alone, except those that stay."""
    for path in sorted((TOP / "hpccoll").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
                    PARTICIPLE.fullmatch(node.name)
                    and node.name not in {*NOUNS, *PARTICIPLES}):
                yield f"{path.relative_to(TOP)}:{node.lineno}: '{node.name}' is a participle alone"


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield file, line and text of everything that a user reads."""
    for pattern in PAGES:
        for path in sorted(TOP.glob(pattern)):
            name = path.relative_to(TOP).as_posix()
            if path.is_file() and not name.startswith(NOT_FOR_USERS):
                for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                    yield name, number, line
    for path in sorted((TOP / "hpccoll").rglob("*")):
        name = path.relative_to(TOP).as_posix()
        if path.suffix == ".py":
            for number, text in strings(path):
                yield name, number, text
        elif path.suffix in (".c", ".h"):
            source = path.read_text("utf-8")
            for match in IN_C.finditer(source):
                yield name, source.count("\n", 0, match.start()) + 1, match[1]


def main() -> int:
    """Print every forbidden word, and every exception that is not needed any more."""
    faults, used = [], set()
    for name, number, text in texts():
        for match in FORBIDDEN.finditer(text):
            allowed = next((each for each in ALLOWED
                            if each.file == name and each.sentence in text), None)
            if allowed is None:
                start = max(0, match.start() - 40)
                faults.append(f"{name}:{number}: '{match[0]}' in: "
                              + " ".join(text[start:match.end() + 40].split()))
            used.add(allowed)
    faults += [*openings(), *participles()]
    faults += [f"tests/words.py: not needed any more: {each}" for each in ALLOWED
               if each not in used]
    print("\n".join(faults) or "words: none that messages and pages do not use")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
