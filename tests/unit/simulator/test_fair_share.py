"""Max-min fair rates, and which of them change."""

import math
from random import Random

import pytest

from hpccoll.simulator.fair_share import fair_rates, new_rates


def test_fair_rates():
    uses = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], [(2, 2.0)]]
    rates, held_by = zip(*fair_rates(uses, dict(enumerate([1.0, 2.0, 8.0]))))
    assert rates == pytest.approx([0.5, 0.5, 1.5, 4.0])
    assert held_by == (0, 0, 1, 2)
    assert fair_rates([[]], {}) == [(math.inf, -1)]


class Flow:
    """A message with a rate, as the event loop has them."""

    def __init__(self, uses):
        self.uses, self.rate, self.held_by = uses, 0.0, -1


class Shared:
    """Messages that begin and end on resources."""

    def __init__(self, capacity):
        self.capacity, self.sharers = capacity, [{} for _ in capacity]
        self.flows = {}
        self.looked_at = 0

    def change(self, begin=(), end=()):
        """Some messages begin, some end; the others get the rates that they are given."""
        changed = {}
        for flow in (*begin, *end):
            for resource, weight in flow.uses:
                changed[resource] = None
                if flow in self.flows:
                    del self.sharers[resource][flow]
                else:
                    self.sharers[resource][flow] = weight
        self.flows = dict.fromkeys(
            [flow for flow in self.flows if flow not in end] + list(begin))
        found = new_rates(changed, self.sharers, self.capacity)
        self.looked_at += len(found)
        for flow, (rate, held_by) in found.items():
            flow.rate, flow.held_by = rate, held_by

    def wrong(self):
        """By how much the rate of a message differs from that of all shared anew, at most."""
        anew = fair_rates([flow.uses for flow in self.flows], dict(enumerate(self.capacity)))
        return max((abs(flow.rate / rate - 1) for flow, (rate, _) in zip(self.flows, anew)),
                   default=0.0)


@pytest.mark.parametrize("resources", [3, 8, 40])
def test_rates_that_are_kept_are_those_of_all_shared_anew(resources):
    """Fails if one comes in too late, is held by what is not full, or keeps more than others."""
    draw = Random(resources)
    shared = Shared([draw.choice((1.0, 1.0, 2.5, 7.0)) for _ in range(resources)])
    for _ in range(120):
        begin = [Flow([(resource, draw.choice((1.0, 1.0, 0.4, 2.0))) for resource in draw.sample(
            range(resources), min(resources, draw.randint(1, 4)))])
            for _ in range(draw.randrange(3))]
        flows = list(shared.flows)
        end = draw.sample(flows, draw.randint(0, min(len(flows), 1 + len(flows) // 20)))
        shared.change(begin, end)
        assert shared.wrong() < 1e-9


def test_a_change_is_not_looked_for_beyond_what_it_reaches():
    """A chain of messages on full ports: none but those beside one that ends get other rates."""
    ports = 1000
    shared = Shared([1.0] * ports)
    # Message k on ports k and k + 1: all of them depend on each other.
    chain = [Flow([(k, 1.0), (k + 1, 1.0)]) for k in range(ports - 1)]
    shared.change(chain)
    assert shared.wrong() < 1e-9
    shared.looked_at = 0
    narrow = Flow([(500, 50.0)])
    shared.change([narrow])
    shared.change(end=[narrow])
    assert shared.wrong() < 1e-9
    print(f"{shared.looked_at} messages looked at, of {2 * ports}")
    assert shared.looked_at < 100
