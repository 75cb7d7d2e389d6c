"""Nodes of the syntax tree are found by their addresses, and nothing else is edited."""

from pathlib import Path

import pytest

from support.edits import CEdit, Edit
from support.folded import folded

PYTHON = '''
STATES = {"T": STOPPED, "é": é}
class A:
    def f(self, x):
        é = "ééé"; g(x, key=1)
        if x.a and (x.b or not  x.c):
            y = self.q.h(-x)
        elif x.a: self.h(2)
        while x: return [z for z in x if z - 1 >= 2]
        y += 3
        raise KeyError(f"{g(x, key=1)}")
def other(): g(2)
'''
C = """
static int f(int a)
{
    if (g(a)) {
        return b  +  (a);
    }
    return b + ab;
}
int g(int a) { return f(a); }
"""
SOURCES = {Path("one/a.py"): PYTHON, Path("one/b.c"): C, Path("two/c.py"): "def other(): g()\n"}


@folded("where, node, found", [
    ("A.f", "g()", "g(x, key=1)"), ("A.f", "g(0)", "x"), ("A.f", "g(key=)", "1"),
    ("A.f", "h() x", "self.q.h(-x)"), ("A.f", "h() #2", "self.h(2)"),
    ("A.f", "if b", "x.a and (x.b or not  x.c)"), ("A.f", "if a #2", "x.a"),
    ("A.f", "if z", "z - 1 >= 2"), ("A.f", "while", "x"), ("A.f", "operand a", "x.a"),
    ("A.f", "not", "not  x.c"), ("A.f", "-", "z - 1"), ("A.f", ">=", "z - 1 >= 2"),
    ("A.f", ".q", "self.q"), ("A.f", "y= h", "self.q.h(-x)"), ("A.f", "y= #2", "3"),
    ("A.f", "return", "[z for z in x if z - 1 >= 2]"),
    ("A.f", "do q", "y = self.q.h(-x)"), ("A.f", "raise", 'raise KeyError(f"{g(x, key=1)}")'),
    ("A.f", "parameters", "self, x"), ("STATES", "T:", "STOPPED"), ("STATES", "é:", "é"),
    ("a:other", "do", "g(2)"), ("two.c:other", "g()", "g()"),
])
def test_a_node_is_found_by_its_form_and_the_names_within(where, node, found):
    path, text = Edit(where, node, "<{}>").made(SOURCES)
    assert text.count("<") == 1 and f"<{found}>" in text
    assert text.replace("<", "").replace(">", "") == SOURCES[path].replace(">=", "=")


@folded("where, node", [
    ("A.f", "h()"), ("A.f", "if w"), ("A.f", "h() #3"), ("A.g", "return"), ("other", "do"),
    ("three:other", "do"), ("f", "return")])
def test_no_node_and_several_are_errors(where, node):
    with pytest.raises(LookupError, match="places"):
        Edit(where, node, "None").made(SOURCES)


def test_c_is_found_by_its_words():
    path, text = CEdit("b.c:f", "b+(a)", "0").made(SOURCES)
    assert path == Path("one/b.c") and text == C.replace("b  +  (a)", "0")
    path, text = CEdit("g", "f(a)", "{} + 1").made(SOURCES)
    assert text == C.replace("return f(a)", "return f(a) + 1")
    for where, node in (("f", "f"), ("f", "b"), ("h", "a"), ("c.c:f", "b+(a)")):
        with pytest.raises(LookupError, match="places"):
            CEdit(where, node, "0").made(SOURCES)
