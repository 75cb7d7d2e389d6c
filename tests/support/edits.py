"""Edits of the sources by address: a qualified name, and a node of its syntax tree.

``Edit("Guard.listen", "if disagree", "False")`` makes a condition false, whatever file the method
stands in, and however the line is written. A node is chosen by its form and by names within it:

====================== =============================================================
``f()``                a call of ``f``, also of ``x.f``
``f(0)``, ``f(key=)``  an argument of such a call
``if``, ``while``      a condition: of a statement, an expression, a comprehension
``operand``            an operand of ``and`` or ``or``
``not``, ``-``, ``>=`` an expression with this operator
``.name``              an attribute
``name=``              the value that is assigned to a name
``key:``               the value of a key in a dictionary
``return``, ``except`` the value, the type
``raise``, ``do``      the whole statement; ``do`` is any simple statement
``parameters``         those of the function
====================== =============================================================

``"if disagree"`` is the condition that has the name ``disagree`` in it; ``"if wraps #1"`` is the
first of several. ``{}`` in the new text stands for the old one. In C there are no nodes:
:class:`CEdit` takes the text of an expression or statement in a function, without its spaces.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

PATTERNS = ("hpccoll/**/*.py", "hpccoll/**/*.c", "hpccoll/**/*.h", "hpccoll/**/*.cu", "setup.py",
            "tests/support/**/*.py")
OPERATORS = {"-": ast.Sub, "*": ast.Mult, "%": ast.Mod, "not": ast.Not, ">=": ast.GtE, "<": ast.Lt}
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
SIMPLE = (*ASSIGNMENTS, ast.Expr, ast.Return, ast.Raise)


#: The sources of a tree, by their paths within it.
Sources: TypeAlias = dict[Path, str]


def read(root: Path) -> Sources:
    """Read the sources that edits may address."""
    return {path.relative_to(root): path.read_text(encoding="utf-8")
            for pattern in PATTERNS for path in root.glob(pattern)}


@dataclass(frozen=True)
class Edit:
    """One node of the sources becomes another one.

    Attributes:
        where: a qualified name; with a part of its module's name before it if several modules
            have that name, as in ``tune:command``. An assigned name of a module counts as well.
        node: form, names within, ``#`` and a number from 1.
        instead: source text; ``{}`` is that of the node.
    """

    where: str
    node: str
    instead: str

    def made(self, sources: Sources) -> tuple[Path, str]:
        """Return the path and the new text of the edited file.

        Raises:
            LookupError: there is not exactly one such node.
        """
        module, _, name = self.where.rpartition(":")
        last, scopes = name.rpartition(".")[2], []
        for path, text in sources.items():
            dotted = ".".join(["", *path.with_suffix("").parts])
            if path.suffix == ".py" and dotted.endswith(f".{module}" * bool(module)) and any(
                    word in text for word in (f"def {last}(", f"class {last}", f"\n{name} = ")):
                scopes += [(path, text, scope) for scope in _named(ast.parse(text), name)]
        path, text, scope = _only(scopes, self.where)
        form, *names = self.node.split()
        number = int(names.pop()[1:]) if names and names[-1][0] == "#" else 0
        found = sorted({_place(node) for node in _nodes(scope, form)
                        if set(names) <= set(_mentioned(node))})
        place = _only(found[number - 1:number] if number else found, f"{self.where}: {self.node}")
        lines = text.splitlines(keepends=True)
        start, end = (sum(map(len, lines[:line - 1]))
                      + len(lines[line - 1].encode()[:column].decode()) for line, column in place)
        return path, self._replaced(text, start, end)

    def _replaced(self, text: str, start: int, end: int) -> str:
        return text[:start] + self.instead.replace("{}", text[start:end]) + text[end:]


@dataclass(frozen=True)
class CEdit(Edit):
    """A text of a function in C becomes another one; blanks do not matter."""

    def made(self, sources: Sources) -> tuple[Path, str]:
        """Return the path and the new text of the edited file.

        Raises:
            LookupError: the text does not stand there exactly once.
        """
        file, _, name = self.where.rpartition(":")
        head = re.compile(rf"^\w[^\n;{{}}=]*\b{name}\s*\([^;{{}}]*\)\s*\{{", re.MULTILINE)
        scopes = [(path, text, match.end()) for path, text in sources.items()
                  if path.suffix != ".py" and path.name.endswith(file)
                  for match in head.finditer(text)]
        path, text, start = _only(scopes, self.where)
        end, depth = start, 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        wanted = re.compile(r"\s*".join(rf"\b{word}\b" if word.isidentifier() else re.escape(word)
                                        for word in re.findall(r"\w+|\S", self.node)))
        found = _only(list(wanted.finditer(text, start, end)), f"{self.where}: {self.node}")
        return path, self._replaced(text, *found.span())


def _only(found: list[Any], what: str) -> Any:
    if len(found) != 1:
        raise LookupError(f"{len(found)} places are {what!r}")
    return found[0]


def _named(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    """The definitions of a qualified name below a node."""
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


def _place(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    if isinstance(node, ast.arguments):
        return _place(node.args[0])[0], _place(node.args[-1])[1]
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of formatted strings: Python 3.11 does not know where they are."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _mentioned(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        for field in ("id", "attr", "arg", "name", "value"):
            if isinstance(word := getattr(one, field, None), str):
                yield word


def _nodes(scope: ast.AST, form: str) -> Iterator[Any]:
    """The nodes of a form, those of the longest table above."""
    called = re.fullmatch(r"(\w+)\((\w*)(=?)\)", form)
    node: Any
    for node in _walk(scope):
        if called:
            if isinstance(node, ast.Call) and _last(node.func) == called[1]:
                if called[3]:
                    yield from (one.value for one in node.keywords if one.arg == called[2])
                elif called[2]:
                    yield from node.args[int(called[2]):][:1]
                else:
                    yield node
        elif form[-1] == "=" and form[:-1].isidentifier():
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if isinstance(node, ASSIGNMENTS) and any(_last(one) == form[:-1] for one in targets):
                yield node.value
        elif form[-1] == ":":
            if isinstance(node, ast.Dict):
                yield from (value for key, value in zip(node.keys, node.values)
                            if key and form[:-1] in _mentioned(key))
        elif form[0] == ".":
            if isinstance(node, ast.Attribute) and node.attr == form[1:]:
                yield node
        elif form in OPERATORS:
            marks = getattr(node, "ops", [getattr(node, "op", None)])
            if any(isinstance(mark, OPERATORS[form]) for mark in marks):
                yield node
        else:
            yield from FORMS[form](node)


def _last(node: Any) -> str | None:
    """The name that a call or an assignment ends with."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _field(kinds: type | tuple[type, ...], field: str) -> Callable[[Any], list[Any]]:
    get = operator.attrgetter(field)
    return lambda node: [get(node)] if isinstance(node, kinds) and get(node) is not None else []


FORMS: dict[str, Callable[[Any], list[Any]]] = {
    "if": lambda node: node.ifs if isinstance(node, ast.comprehension) else _field(
        (ast.If, ast.IfExp), "test")(node),
    "while": _field(ast.While, "test"),
    "operand": lambda node: node.values if isinstance(node, ast.BoolOp) else [],
    "return": _field(ast.Return, "value"),
    "except": _field(ast.ExceptHandler, "type"),
    "raise": lambda node: [node] if isinstance(node, ast.Raise) else [],
    "do": lambda node: [node] if isinstance(node, SIMPLE) else [],
    "parameters": _field(ast.FunctionDef, "args"),
}
