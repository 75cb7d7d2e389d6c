"""The names of methods belong to the collectives, and their arguments fit."""

from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.methods import METHODS, TABLE, UNKNOWN_COUNTS


def test_each_collective_is_a_method_and_each_method_has_a_collective():
    assert all(METHODS[name] == name for name in COLLECTIVES)
    assert set(METHODS.values()) == set(COLLECTIVES) and set(UNKNOWN_COUNTS) < set(METHODS)
    for row in TABLE.values():
        collective = COLLECTIVES[row.collective]
        assert ("n" in row.roles, "o" in row.roles) == (collective.rooted, collective.reduces)
        assert row.at_root in row.roles and collective.rooted >= bool(row.at_root)
