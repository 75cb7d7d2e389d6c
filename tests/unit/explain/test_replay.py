"""The replay: what messages carry, as the proof counts it."""


import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.explain.replay import facts, ranks_of, timeline
from hpccoll.ir.schedule import LEFT
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove
from support.extra_schedules import extra_schedules

FLAT = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if not e.hierarchical]


def agree(made):
    """Compare what the replay counts with what the proof counts."""
    one, *_ = cases(made, made.collective)
    proof, found = prove(made, made.collective, one), facts(made)
    assert found.proof == proof
    assert (found.rounds, found.sent, found.messages) == (proof.rounds, proof.sent, proof.messages)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, algorithm", FLAT)
def test_replay_agrees_with_the_proof(collective, algorithm):
    for size in (1, 2, 3, 5, 8):
        agree(schedule(collective, algorithm, size, root=size // 2))


@pytest.mark.parametrize("collective, algorithm", FLAT)
def test_replay_moves_the_blocks_that_the_proof_moves(collective, algorithm):
    """After the last round every slot holds the wanted block with the wanted contributions."""
    size, root = 6, 4
    made = schedule(collective, algorithm, size, root=root)
    held = {rank: set() for rank in range(size)}
    for message in timeline(made).messages:
        assert None not in message.values
        held[message.receiver] |= {value.block for value in message.values}
        for value in message.values:
            assert ranks_of(value.ranks)
    for rank in range(size):
        given = made.collective.given(rank, size, root, made.nblocks)
        own = {key for keys in given.values() for key in keys}
        for wanted in made.collective.wanted(rank, size, root, made.nblocks):
            if set(wanted.ranks) - {rank}:
                assert wanted.block in held[rank] | own


def test_contributions_accumulate_round_the_ring():
    messages = timeline(schedule("allreduce", "ring", 4)).messages
    assert [(m.round, m.sender, m.receiver, m.values[0].block, ranks_of(m.values[0].ranks), m.side)
            for m in messages if m.sender == 1] == [
        (1, 1, 2, 1, [1], LEFT), (2, 1, 2, 0, [0, 1], LEFT), (3, 1, 2, 3, [0, 1, 3], LEFT),
        (4, 1, 2, 2, [0, 1, 2, 3], ""), (5, 1, 2, 1, [0, 1, 2, 3], ""),
        (6, 1, 2, 0, [0, 1, 2, 3], "")]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_replay_agrees_on_lanes_and_on_what_the_network_does(size):
    for made in extra_schedules(size):
        agree(made)
        line = timeline(made)
        if made.collective.name == "allreduce":
            last = (*line.messages, *line.operations)[-1:]
            assert all(value.ranks == (1 << size) - 1 for m in last for value in m.values)
