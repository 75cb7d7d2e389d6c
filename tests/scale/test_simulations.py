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
PAGE = (ROOT / "docs" / "internal" / "simulation-cost.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_messages_of_a_rank(collective):
    """A new algorithm of either kind gets a row of docs/internal/simulation-cost.md."""
    found = {name for name in ALGORITHMS[collective] if linear(collective, name)}
    assert found == LINEAR.get(collective, set())
    said, of = set(), None
    for line in PAGE.split("What it takes")[1].splitlines():
        for word in line.replace(",", " ").replace(";", " ").split("|")[1].split() if (
                line.startswith("| ")) else ():
            of = word if word in ALGORITHMS else of
            said.add((of, word))
    assert {(collective, name) for name in ALGORITHMS[collective]} <= said
