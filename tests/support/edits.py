"""Edits of the sources: a text within a function, a class or an assignment becomes another one.

``Edit("Guard.listen", "if odd:", "if False:")`` holds whatever file the method stands in, and
however its lines are broken: blanks do not matter. In C the text stands in a function:
``Edit("_call_guard.h:acquire", "owner ||", "0 ||")``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

PATTERNS = ("hpccoll/**/*.py", "hpccoll/**/*.c", "hpccoll/**/*.h", "hpccoll/**/*.cu", "setup.py",
            "tests/support/**/*.py")
#: Many edits are of one file.
_parse = functools.cache(ast.parse)
#: The sources of a tree, by their paths within it.
Sources: TypeAlias = dict[Path, str]


def read(root: Path) -> Sources:
    """Read the sources that edits may address."""
    return {path.relative_to(root): path.read_text(encoding="utf-8")
            for pattern in PATTERNS for path in root.glob(pattern)}


@dataclass(frozen=True)
class Edit:
    """One text of the sources becomes another one."""

    where: str
    old: str
    new: str

    def made(self, sources: Sources) -> tuple[Path, str]:
        """Return the path and the new text of the edited file."""
        file, _, name = self.where.rpartition(":")
        last = name.rpartition(".")[2]
        path, start, end = _only([
            (path, *span) for path, text in sources.items()
            if (not file or f"/{path}".removesuffix(".py").endswith(f"/{file}"))
            and last in text and any(word in text for word in (
                f" {last}(", f"*{last}(", f"class {last}", f"\n{last} ="))
            for span in (_python if path.suffix == ".py" else _c)(text, name)], self.where)
        text = sources[path]
        words = re.compile(r"\s*".join(rf"\b{word}\b" if word.isidentifier() else re.escape(word)
                                       for word in re.findall(r"\w+|\S", self.old)))
        found = _only([*words.finditer(text, start, end)], f"{self.where}: {self.old}")
        return path, (text[:found.start()] + self.new.replace("{}", found.group())
                      + text[found.end():])


def _only(found: list[Any], what: str) -> Any:
    if len(found) != 1:
        raise LookupError(f"{len(found)} places are {what!r}")
    return found[0]


def _python(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Where the definitions of a qualified name begin and end."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for node in _named(_parse(text), name):
        yield starts[node.lineno - 1], starts[node.end_lineno] - 1


def _named(tree: ast.AST, name: str) -> Iterator[Any]:
    first, _, rest = name.partition(".")
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            if child.name == first:
                yield from _named(child, rest) if rest else (child,)
        elif isinstance(child, ast.Assign) and not rest:
            if any(isinstance(one, ast.Name) and one.id == first for one in child.targets):
                yield child
        elif isinstance(child, ast.stmt):
            yield from _named(child, name)


def _c(text: str, name: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(rf"^\w[^\n;{{}}=]*\b{name}\s*\([^;{{}}]*\)\s*\{{", text, re.MULTILINE):
        end, depth = match.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield match.end(), end
