"""Small faults in Python sources, made by rules: what tests do not notice, they do not check.

One node of the syntax tree changes: a comparison is turned round, a number or a Boolean changes,
a call, a branch, an operand of ``and`` and ``or``, or a keyword is dropped. Texts of errors,
annotations and declarations for type checkers stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

COMPARE, CONSTANT, CALL, BRANCH, OPERAND, KEYWORD = KINDS = (
    "comparison", "constant", "call", "branch", "operand", "keyword")
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Is: ast.IsNot, ast.In: ast.NotIn}
OPPOSITE |= {right: left for left, right in OPPOSITE.items()}
#: What a program does not run, or only for a text that people read.
SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert)


class SourceMutant(NamedTuple):
    """One fault: the text from ``start`` to ``end`` becomes ``new``; ``line`` is its first line."""

    kind: str
    line: int
    start: int
    end: int
    new: str

    def made(self, text: str) -> str:
        """Return the source with the fault."""
        return text[:self.start] + self.new + text[self.end:]


def mutants(text: str) -> Iterator[SourceMutant]:
    """Yield every fault of a source."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in _walk(ast.parse(text)):
        what: Any
        for kind, what, new in _faults(node):
            yield SourceMutant(kind, what.lineno, place(what.lineno, what.col_offset),
                         place(what.end_lineno, what.end_col_offset), new)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not isinstance(child, SKIPPED) and not typing:
                yield from _walk(child)


def _faults(node: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield kind, node that changes and its new text."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        turned = ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
        yield COMPARE, node, f"({ast.unparse(turned)})"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        value: Any = node.value
        yield CONSTANT, node, str(not value if isinstance(value, bool) else value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield CALL, node, "pass"
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield BRANCH, node.test, "False"
        if node.orelse:
            yield BRANCH, node.test, "True"
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = ast.BoolOp(node.op, [*node.values[:index], *node.values[index + 1:]])
            yield OPERAND, node, f"({ast.unparse(rest)})"
    elif isinstance(node, ast.Call):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                others = [*node.keywords[:index], *node.keywords[index + 1:]]
                yield KEYWORD, node, ast.unparse(ast.Call(node.func, node.args, others))
