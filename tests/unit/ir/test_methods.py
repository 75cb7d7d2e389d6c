"""The names of methods belong to the collectives."""

from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.methods import METHODS, UNKNOWN_COUNTS


def test_each_collective_is_a_method_and_each_method_has_a_collective():
    assert all(METHODS[name] == name for name in COLLECTIVES)
    assert set(METHODS.values()) == set(COLLECTIVES) and set(UNKNOWN_COUNTS) < set(METHODS)
