"""Operators as data."""

import pytest

from hpccoll.ir.operators import OPERATORS


def test_names_are_those_of_mpi():
    assert set(OPERATORS) == {"sum", "prod", "max", "min", "land", "lor", "lxor", "band", "bor",
                              "bxor", "maxloc", "minloc"}
    assert all(name == op.name for name, op in OPERATORS.items())


@pytest.mark.parametrize("name, kinds", [
    ("sum", "iufc"), ("prod", "iufc"), ("max", "iuf"), ("min", "iuf"), ("land", "iub"),
    ("lor", "iub"), ("lxor", "iub"), ("band", "iu"), ("bor", "iu"), ("bxor", "iu"),
    ("maxloc", ""), ("minloc", "")])
def test_operators_are_defined_where_mpi_says(name, kinds):
    assert {kind for kind in "biufcVO" if OPERATORS[name].defined_on(kind)} == set(kinds)
    assert OPERATORS[name].pairs == name.endswith("loc")


def test_floating_point_is_never_exact():
    for op in OPERATORS.values():
        assert not op.is_exact("f") and not op.is_exact("c")
        assert all(op.defined_on(kind) for kind in op.exact)
    assert OPERATORS["sum"].is_exact("i") and OPERATORS["land"].is_exact("b")
