"""Formulas: what they say is what they compute."""

import math

import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.formula import (
    LEGEND,
    Formula,
    P,
    Relation,
    ceil_div,
    ceil_log,
    ceil_log2,
    d,
    doubling_sum,
    even,
    f,
    f0,
    floor_div,
    floor_log,
    floor_log2,
    g,
    if_odd,
    inner,
    k,
    least,
    m,
    m0,
    more_than,
    n,
    number,
    p,
    p_equal,
)
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from support.folded import folded

LAYOUTS = [Topology.parse(text) for text in (
    "2x2", "2x3", "3x4", "4x8", "8x4", "2x2x2", "3x2x2", "4x2x4", "5x7", "6x16", "1x4", "4x1")]


@pytest.mark.parametrize("formula, text, value", [
    (p, "p", lambda p: p),
    (P, "P", lambda p: 2 ** math.floor(math.log2(p))),
    (f, "f", lambda p: 0 if math.log2(p).is_integer() else 1),
    (even, "p′", lambda p: p if p % 2 == 0 else p - 1),
    (floor_log2(p), "⌊log₂p⌋", lambda p: math.floor(math.log2(p))),
    (ceil_log2(p), "⌈log₂p⌉", lambda p: math.ceil(math.log2(p))),
    (floor_log(number(4), p), "⌊log_4 p⌋", lambda p: math.floor(math.log2(p) / 2)),
    (ceil_log(number(4), p), "⌈log_4 p⌉", lambda p: math.ceil(math.log2(p) / 2)),
    (floor_div(p, 3), "⌊p/3⌋", lambda p: math.floor(p / 3)),
    (ceil_div(p - 1, 3), "⌈(p - 1)/3⌉", lambda p: math.ceil((p - 1) / 3)),
    (least(p, 4), "min(p, 4)", lambda p: min(p, 4)),
    (more_than(p, 2), "[p > 2]", lambda p: 1 if p > 2 else 0),
    (if_odd(p - 1, p / 2), "p/2, or p - 1 for odd p", lambda p: p - 1 if p % 2 else p // 2),
    (doubling_sum(least(d, p - P)), "Σmin(d, p - P)",
     lambda p: sum(min(2 ** i, p - 2 ** int(math.log2(p))) for i in range(int(math.log2(p))))),
    (2 * (p - 1), "2(p - 1)", lambda p: 2 * (p - 1)),
    (2 * p - (p - even), "2p - (p - p′)", lambda p: p + p - p % 2),
    (1 + p, "1 + p", lambda p: 1 + p),
    ((p + 1) * (p - 1), "(p + 1)(p - 1)", lambda p: p * p - 1),
    (p * (p + 1) / 2, "p(p + 1)/2", lambda p: sum(range(p + 1))),
    (floor_log2(3 * even) - 1, "⌊log₂(3p′)⌋ - 1",
     lambda p: math.floor(math.log2(3 * (p - p % 2))) - 1)])
def test_symbols_and_functions(formula, text, value):
    assert str(formula) == text
    for size in range(2, 300):
        assert formula(size) == value(size), size


@pytest.mark.parametrize("formula, text, value", [
    (m0, "m₀", lambda top, *_: top), (g, "g", lambda top, *rest: math.prod(rest)),
    (f0, "f₀", lambda top, *_: int(top not in (1, 2, 4, 8, 16))),
    (p_equal, "p", lambda *numbers: math.prod(numbers)),
    (inner(m - 1), "Σ(mᵢ - 1)", lambda _, *rest: sum(number - 1 for number in rest)),
    (m0 + inner(m), "m₀ + Σmᵢ", lambda *numbers: sum(numbers)),
    (2 * inner(floor_log2(m)), "2Σ⌊log₂mᵢ⌋",
     lambda _, *rest: 2 * sum(number.bit_length() - 1 for number in rest))])
def test_levels(formula, text, value):
    assert str(formula) == text
    for numbers in ((4,), (4, 8), (3, 2, 5), (2, 2, 2, 2), (16, 3)):
        assert formula(Topology.parse("x".join(map(str, numbers)))) == value(*numbers)
    for layout in ("2,3", "(2,3),(4)", "2x(3,2)"):
        assert formula(Topology.parse(layout)) is None


def test_groups_of_one_are_passed_over():
    assert (m0 + inner(m))(Topology.parse("4x1x8")) == 12
    assert (m0 + inner(m))(Topology.parse("1x1")) == 1 == (m0 + inner(m))(1)


def test_parameters():
    assert str(n - 1 + ceil_log(k, p)) == "n - 1 + ⌈logₖp⌉"
    assert (n - 1 + ceil_log(k, p))(82, n=8, k=3) == 7 + 5
    assert floor_log(k, p)(81, k=3) == 4 and floor_log(k, p)(80, k=3) == 3
    for wrong in (ceil_log(k, p), floor_log(k, p)):
        with pytest.raises(ArgumentError, match="at least 2"):
            wrong(1, k=1)


FORMS = [pytest.param(form, entry, id=f"{collective}-{name}-{what}")
         for collective, table in ALGORITHMS.items() for name, entry in table.items()
         for what, form in (("rounds", entry.rounds), ("sent", entry.sent),
                            ("blocks", entry.blocks)) if form is not None]


@folded("form, entry", FORMS)
def test_what_a_form_states_holds(form, entry):
    """Formulas are their own statements; of others, the function is compared with what is said."""
    if not isinstance(form, Relation):
        assert isinstance(form, Formula) or form is entry.blocks and entry.rounds is None
        return
    holds = {"=": int.__eq__, "≤": int.__le__, "≥": int.__ge__}[form.relation]
    compared = 0
    for where in LAYOUTS if entry.hierarchical else range(2, 300):
        for value in (2, 3, 4, 5, 8) if "k" in entry.params else (None,):
            params = {**entry.params, **({} if value is None else {"k": value})}
            number, stated = form(where, **params), form.statement(where, **params)
            if number is not None:
                compared += 1
                assert holds(number, stated), (where, params)
    assert compared > 5
    assert str(form).removeprefix(form.relation).strip() == str(form.statement)


def test_the_legend_names_every_symbol():
    letters = {"p", "P", "p′", "f", "m₀", "f₀", "g", "d", "mᵢ", "k", "n", "batch"}
    assert letters | {"[...]"} == {word for key in LEGEND for word in key.split(", ")}
