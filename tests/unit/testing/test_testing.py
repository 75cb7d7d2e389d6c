"""What the test tools run on: layouts, and every algorithm."""

from hpccoll.algorithms import ALGORITHMS
from hpccoll.testing import every, layouts


def test_layouts_are_even_and_ragged_of_two_and_three_levels():
    assert [str(t) for t in layouts(5)] == ["2,3", "1,4", "(2x1),(1,2)"]
    assert all(t.size == p and (p == 1 or t.depth > 1) for p in range(1, 20) for t in layouts(p))


def test_every_algorithm_comes_with_all_roots_and_layouts():
    names = [(made.collective.name, made.root) for _, made in every(3)]
    assert {name for name, _ in names} == set(ALGORITHMS)
    assert {root for name, root in names if name == "bcast"} == {0, 1, 2}
    assert {root for name, root in names if name == "allreduce"} == {0}
    hierarchical = [made for entry, made in every(4, range(1)) if entry.hierarchical]
    plain = sum(entry.hierarchical for table in ALGORITHMS.values() for entry in table.values())
    assert len(hierarchical) == plain * len(layouts(4))
