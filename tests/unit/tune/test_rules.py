"""The rules of thumb: each can be the first to fit, and names what the table has."""

from itertools import product

import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.config import NATIVE
from hpccoll.ir.methods import FORMS
from hpccoll.tune.rules import INTEL, MPICH, OPEN_MPI, RULES, Place
from support.folded import folded

#: A library that no rule names.
LIBRARIES = (MPICH, OPEN_MPI, INTEL, "another")
PLACES = [Place(*flags) for flags in product((True, False), repeat=6)]
RANKS = sorted({2, 3, 4, 5, 8, 9, 64, *(rule.least_ranks for rule in RULES if rule.least_ranks),
                *(rule.most_ranks + more for rule in RULES if rule.most_ranks
                  for more in (0, 1))})


def sizes(rules):
    """Numbers of bytes at and beside every boundary of the rules."""
    ends = {0, 1, *(end for rule in rules for end in rule.nbytes),
            *(rule.block * ranks for rule in rules for ranks in RANKS)}
    return sorted({max(end + more, 0) for end in ends for more in (-1, 0, 1)} | {1 << 40})


def never_first(rules):
    """The rules that are not the first to fit for any call, library and place."""
    first = set()
    for collective in {rule.collective for rule in rules}:
        numbered = [(n, r) for n, r in enumerate(rules) if r.collective == collective]
        for fitting in {tuple((n, r) for n, r in numbered
                              if r.fits(collective, nbytes, ranks, library))
                        for nbytes, ranks, library in product(sizes([r for _, r in numbered]),
                                                              RANKS, LIBRARIES)}:
            for place, form in product(PLACES, FORMS):
                first.add(next((n for n, r in fitting if r.fits_in(place) and form in r.forms),
                               None))
    return [rule for number, rule in enumerate(rules) if number not in first]


def test_every_rule_can_be_the_first_to_fit():
    assert not never_first(RULES)


@pytest.mark.long(every=6)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(RULES), 19))
def test_a_rule_behind_one_that_says_more_is_found(number):
    hidden = RULES[number]._replace(segment_bytes=4096)
    assert never_first([*RULES[:number + 1], hidden, *RULES[number + 1:]]) == [hidden]


@folded("rule", RULES)
def test_rules_name_algorithms_of_the_table(rule):
    assert rule.algorithm in (NATIVE, *ALGORITHMS[rule.collective])
    assert not rule.nbytes[1] or rule.nbytes[0] < rule.nbytes[1]
