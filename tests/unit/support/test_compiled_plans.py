"""Compiled plans for people."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from support.compiled_plans import text_of


def test_the_instructions_of_a_rank():
    shown = text_of(schedule("allreduce", "recursive_doubling", 2), 1, 8)
    assert "send    to 0, 8 bytes of in+0" in shown and "cell+0" in shown
    assert text_of(schedule("barrier", "dissemination", 2), 0, None).count("0 bytes") >= 2


def test_messages_to_other_nodes_are_in_batches():
    """Those of other nodes of the layout, if the schedule was made for one."""
    shown = text_of(schedule("allreduce", "leader", topology="2x2"), 0, 8)
    assert "post    to 2, 8 bytes of " in shown and "bytes from 2 into " in shown
    assert shown.index("start   batch 0") < shown.index("await   batch 0")
    assert "post    to 1" not in shown and "to 1, 8 bytes" in shown
    assert "batch" not in text_of(schedule("allreduce", "leader", topology="1x4"), 0, 8)
    assert "batch" not in text_of(schedule("allreduce", "leader", topology="4"), 0, 8)


def test_a_rank_that_is_not_there():
    with pytest.raises(ArgumentError, match="rank 2"):
        text_of(schedule("allreduce", "ring", 2), 2, None)


def test_what_no_plan_can_say(monkeypatch):
    monkeypatch.setattr("support.compiled_plans.PLACES", 0)
    with pytest.raises(ArgumentError, match="compiled plan"):
        text_of(schedule("allreduce", "ring", 2), 0, None)
