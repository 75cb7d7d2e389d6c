"""Texts are found within what a qualified name defines, and nothing else is edited."""

from pathlib import Path

import pytest

from support.edits import Edit
from support.folded import folded

PYTHON = '''
STATES = {"T": STOPPED, "é": é}
class A:
    def f(self, x):
        é = "é"; g(x, key=1)
        if x.a and (x.b or
                    not  x.c):
            y = self.q.h(-x)
        y += 3
def other(): g(2)
def f(x): return x
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


@folded("where, old, found", [
    ("A.f", "g(x, key=1)", "g(x, key=1)"), ("A.f", "not x.c", "not  x.c"),
    ("A.f", "x.b or not", "x.b or\n                    not"), ("A", "y += 3", "y += 3"),
    ("STATES", "STOPPED", "STOPPED"), ("STATES", '"é": é', '"é": é'), ("a:other", "g(2)", "g(2)"),
    ("two/c:other", "g()", "g()"), ("b.c:f", "b+(a)", "b  +  (a)"), ("g", "f(a)", "f(a)")])
def test_a_text_is_found_whatever_its_blanks_are(where, old, found):
    path, text = Edit(where, old, "<{}>").made(SOURCES)
    assert text == SOURCES[path].replace(found, f"<{found}>")


@folded("where, old", [
    ("A.f", "h()"), ("A.f", "x"), ("A.g", "x"), ("other", "g"), ("three:other", "g"), ("f", "b"),
    ("b.c:f", "b"), ("h", "a"), ("A.f", "key=1)", )])
def test_no_text_and_several_are_errors(where, old):
    with pytest.raises(LookupError, match="places"):
        Edit(where, old, "None").made({**SOURCES, Path("three/a.py"): PYTHON} if old == "key=1)"
                                      else SOURCES)
