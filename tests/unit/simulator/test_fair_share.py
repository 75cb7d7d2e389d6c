"""Max-min fair rates."""

import math

import pytest

from hpccoll.simulator.fair_share import fair_rates


def test_fair_rates():
    uses = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], [(2, 2.0)]]
    assert fair_rates(uses, [1.0, 2.0, 8.0]) == pytest.approx([0.5, 0.5, 1.5, 4.0])
    assert fair_rates([[]], []) == [math.inf]
