"""Rules: the calls and places that they speak of."""

import pytest
from unit.tune.choosing import HERE, allreduce
from unit.tune.choosing import choose as choose_anywhere

from hpccoll.algorithms import schedule
from hpccoll.config import NATIVE
from hpccoll.tune.rules import RULES, Place, Rule


def test_rules_name_algorithms_that_exist_and_can_serve():
    for rule in RULES:
        assert rule.nbytes[0] > 0 or rule.collective == "barrier" or rule.algorithm == NATIVE
        assert not rule.nbytes[1] or rule.nbytes[0] < rule.nbytes[1]
        if rule.algorithm != NATIVE:
            schedule(rule.collective, rule.algorithm, 4)


@pytest.mark.parametrize("nbytes, size, fits", [
    (99, 2, False), (100, 2, True), (199, 2, True), (200, 2, False), (100, 3, False)])
def test_a_rule_has_limits(nbytes, size, fits):
    rule = Rule("allreduce", "ring", (100, 200), most_ranks=2)
    assert rule.fits("allreduce", nbytes, size, "MPICH") is fits
    assert not rule.fits("scan", nbytes, size, "MPICH")
    assert not rule.fits("allreduce", nbytes, size, "another library")
    assert rule._replace(vendors=()).fits("allreduce", nbytes, size, "another library") is fits


def test_a_rule_may_ask_for_large_shares():
    rule = Rule("allreduce", "ring", (1, 0), block=10)
    assert rule.fits("allreduce", 40, 4, "MPICH") and not rule.fits("allreduce", 40, 5, "MPICH")


def test_a_rule_may_ask_for_numbers_of_ranks():
    rule = Rule("allreduce", "ring", (1, 0), most_ranks=4, least_ranks=3)
    assert [size for size in range(1, 8) if rule.fits("allreduce", 8, size, "MPICH")] == [3, 4]
    assert str(rule) == ("allreduce from 1 B, from 3 ranks, up to 4 ranks, on one node, "
                         "with MPICH or Open MPI")


@pytest.mark.parametrize("ranks, oversubscribed", [(2, False), (4, True)])
def test_without_the_compiled_executor_calls_on_one_node_are_the_librarys(ranks, oversubscribed):
    for compiled in (False, True):
        place = Place(one_node=True, oversubscribed=oversubscribed, compiled=compiled)
        chosen = choose_anywhere(allreduce(), ranks, None, True, place=place)
        assert chosen.is_native is not compiled


def test_a_rule_may_ask_for_a_place():
    here = HERE._replace(compiled=True)
    rule = Rule("allreduce", "ring", (1, 0), oversubscribed=True, in_order=True)
    assert rule.fits_in(here)
    for other in (here._replace(one_node=False), here._replace(oversubscribed=False),
                  here._replace(in_order=False)):
        assert not rule.fits_in(other)
        assert rule._replace(one_node=None, oversubscribed=None, in_order=None).fits_in(other)
    assert "sharing processors, numbered node by node" in str(rule)


@pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
@pytest.mark.parametrize("collective", ["bcast", "reduce"])
def test_no_rule_makes_long_chains(collective, library):
    def chains(size):
        return [rule for rule in RULES if rule.algorithm == "chain"
                and rule.fits(collective, 1 << 30, size, library)]

    assert chains(8) and not chains(9)
