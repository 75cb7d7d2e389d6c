"""The closed forms, against the table of the ZeRO paper and against messages that are made."""

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.shard.memory_model import (
    footprint,
    gathered_bytes,
    scattered_bytes,
    sent_bytes,
)
from hpccoll.training.shard.quantised import encode


@pytest.mark.parametrize("stage, each", [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_the_figures_of_the_paper(stage, each):
    """7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    total = footprint(stage, 7_500_000_000, 64, itemsize=2, state_bytes=12).total
    assert total == pytest.approx(7.5e9 * each)
    assert total / 1e9 == pytest.approx([120, 31.4, 16.6, 1.9][stage], abs=0.05)


@pytest.mark.parametrize("figure", [footprint, sent_bytes])
def test_there_are_four_stages(figure):
    with pytest.raises(ArgumentError, match="stage: .*4.*0, 1, 2, 3"):
        figure(4, 1000, 2)


def test_bytes_sent():
    assert [sent_bytes(stage, 1000, 5, 2) for stage in range(4)] == [3200, 3200, 3200, 4800]
    assert sent_bytes(3, 1000, 5, 2, persistent=1000) == sent_bytes(0, 1000, 5, 2)
    assert [sent_bytes(stage, 1000, 1) for stage in range(4)] == [0] * 4


@pytest.mark.parametrize("bits", (4, 8))
def test_a_message_has_the_bytes_of_its_closed_form(bits):
    assert gathered_bytes(2048, 2, bits, 64) * 2 == encode(numpy.ones(2048, "f4"), bits, 64).size


def test_a_quarter_of_the_gradients_crosses_nodes():
    """ZeRO++: int4 of half-precision gradients, a node of Y ranks sends 1/4 of their bytes."""
    across = scattered_bytes(1 << 20, 1, 1 << 10, 4, 1 << 19)
    assert across == pytest.approx((1 << 20) * 2 / 4, rel=2e-3)
