"""In-order binary tree: as deep as the longer side of the root is long, in bits."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove


@pytest.mark.parametrize("size, root", [(2, 0), (8, 3), (9, 8), (33, 0), (40, 20)])
@pytest.mark.parametrize("collective, name", [("bcast", "binary"), ("reduce", "in_order_binary")])
def test_rounds_are_the_bits_of_the_longer_side(collective, name, size, root):
    made = schedule(collective, name, size, root=root)
    proof = prove(made, made.collective, cases(made, made.collective)[0])
    assert proof.rounds == max(root, size - 1 - root).bit_length()
    assert proof.sent <= (2 if collective == "bcast" else 1)
