"""Faults by rules: each changes what a module does, and leaves what nobody runs."""

import ast

import pytest

from support.source_mutants import KINDS, mutants

SOURCE = '''
if TYPE_CHECKING:
    import a
LIMIT: Literal[3] = 7
def f(x, é=True):
    "é"
    if x < 1 and é:
        g(x, key=x)
    else:
        raise ValueError(f"{x + 5}" if x else "6")
    return x in y if x else (x, -x)
'''
CHANGES = {
    ("constant", "7", "8"), ("constant", "True", "False"), ("branch", "x < 1 and é", "False"),
    ("branch", "x < 1 and é", "True"), ("operand", "x < 1 and é", "(é)"),
    ("operand", "x < 1 and é", "(x < 1)"), ("comparison", "x < 1", "(x >= 1)"),
    ("constant", "1", "2"), ("call", "g(x, key=x)", "pass"), ("keyword", "g(x, key=x)", "g(x)"),
    ("branch", "x", "False"), ("branch", "x", "True"), ("comparison", "x in y", "(x not in y)")}


def test_one_node_changes():
    made = list(mutants(SOURCE))
    assert {(one.kind, SOURCE[one.start:one.end], one.new) for one in made} == CHANGES
    assert {one.kind for one in made} == set(KINDS) and len(made) == len(CHANGES)


@pytest.mark.parametrize("mutant", [*mutants(SOURCE)], ids=lambda one: f"{one.kind} {one.line}")
def test_a_mutant_is_another_program_on_the_named_line(mutant):
    text = mutant.made(SOURCE)
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE))
    assert text.splitlines()[:mutant.line - 1] == SOURCE.splitlines()[:mutant.line - 1]
    assert text.splitlines()[mutant.line - 1] != SOURCE.splitlines()[mutant.line - 1]
