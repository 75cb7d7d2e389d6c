"""Which algorithms of the table send O(p) messages a rank: 100,000 ranks are no size for them."""

import pytest
from scale.measure import ROOT
from scale.simulations import linear

from hpccoll.algorithms import ALGORITHMS

#: All others send O(log p) messages a rank on average, or fewer.
LINEAR = {
    "allreduce": {"ring", "allpairs"},
    "reduce_scatter": {"ring", "linear", "pairwise"},
    "allgather": {"ring", "linear", "neighbor_exchange"},
    "alltoall": {"linear", "pairwise", "scattered", "leader", "two_phase"},
    "bcast": {"scatter_ring"},
}
PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_messages_of_a_rank(collective):
    """A new algorithm of either kind gets a row of docs/simulate.md."""
    found = {name for name in ALGORITHMS[collective] if linear(collective, name)}
    assert found == LINEAR.get(collective, set())
    said = " ".join(line.split("|")[1] for line in PAGE.split("What it takes")[1].splitlines()
                    if line.startswith("| "))
    assert all(name in said for name in ALGORITHMS[collective])
