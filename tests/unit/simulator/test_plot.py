"""What a picture of simulations makes of lines that cannot be told apart."""

import pytest

from hpccoll.simulator.plot import merge_series

LINE = [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("other, alike", [
    (LINE, True), ([(1, 1.0001), (2, 1.9999)], True), ([(1, 1.0), (2, 3.0)], False),
    ([(1, 1.0), (4, 2.0)], False), (LINE[:1], False)])
def test_lines_upon_each_other_are_one_with_all_names(other, alike):
    found = merge_series({"rails": LINE, "leader": [(1, 9.0), (2, 9.0)], "ring": other})
    assert (list(found) == [("rails", "ring"), ("leader",)]) is alike
    assert len(found) == (2 if alike else 3) and LINE in found.values()
