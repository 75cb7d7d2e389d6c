"""Explanations in words."""

from pathlib import Path

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.explain import as_json, as_text
from hpccoll.explain.replay import facts
from hpccoll.explain.text import WANTS
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove
from support.folded import folded

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FLAT = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if not e.hierarchical]
LAYERED = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if e.hierarchical]


def swapped(rank, size):
    """Ranks 0 and 1 exchange their contributions and forget their own: wrong on purpose."""
    return Program(((send(1 - rank, at(IN, 0)), recv(1 - rank, at(OUT, 0))),))


def lonely(rank, size):
    """Rank 0 sends what nobody receives."""
    return Program(((send(1, at(IN, 0)),), (copy(at(OUT, 0), at(IN, 0)),)) if rank == 0 else
                   ((copy(at(OUT, 0), at(IN, 0)),),))


def agree(made):
    """Compare what the replay counts with what the proof counts."""
    one, *_ = cases(made, made.collective)
    proof, found = prove(made, made.collective, one), facts(made)
    assert found.proof == proof
    assert (found.rounds, found.sent, found.messages) == (proof.rounds, proof.sent, proof.messages)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, algorithm", LAYERED)
def test_layers_are_explained(collective, algorithm):
    for layout in ("2x3", "3,1,2", "2x2x2"):
        made = schedule(collective, algorithm, topology=layout, root=4)
        agree(made)
        text = as_text(made)
        assert f"topology={layout}" in text
        assert "WRONG" not in text and "never" not in text and "never written" not in text
        assert as_json(made)["topology"] == layout


def test_every_collective_is_put_in_words():
    assert set(WANTS) == set(COLLECTIVES)


@pytest.mark.slow
@folded("collective, algorithm", FLAT)
def test_every_algorithm_is_explained(collective, algorithm):
    for size in (1, 2, 7, 17):
        text = as_text(schedule(collective, algorithm, size), nbytes=1000)
        assert text.startswith(f"{collective} {algorithm} size={size}")
        assert "WRONG" not in text and "never" not in text and "never written" not in text
        assert max(map(len, text.splitlines())) <= 100


def test_text_of_a_small_ring():
    text = as_text(schedule("allreduce", "ring", 3), nbytes=3 << 20)
    assert "Wanted: every rank ends with the vector reduced over all ranks." in text
    assert "Payload: a vector split into 3 blocks of 1 MiB." in text
    assert "  rounds      4, the longest chain of dependent messages" in text
    assert "  messages    12 in all, at most 4 from one rank" in text
    assert "  sent        12 blocks (12 MiB) in all, at most 4 blocks (4 MiB) by one rank" in text
    assert "  rank order  not kept" in text
    assert "  round 2: every rank r -> r + 1 (mod 3), 1 block each, reduced on arrival\n" \
           "      0 -> 1: b2 of 0,2   1 -> 2: b0 of 0-1   2 -> 0: b1 of 1-2\n" in text
    assert "      3  send out[1] to 1; receive out[0] from 2\n" in text


def test_patterns_have_names():
    text = as_text(schedule("allreduce", "recursive_doubling", 8))
    assert "every rank r <-> r xor 4" in text
    assert "rank 2 -> 4 ranks" in as_text(schedule("bcast", "linear", 5, root=2))
    assert "4 ranks -> rank 0" in as_text(schedule("gather", "linear", 5))
    assert "every rank -> every other rank" in as_text(schedule("alltoall", "linear", 5))
    assert "no messages: all work is local" in as_text(schedule("alltoall", "linear", 1))


def test_many_ranks_are_summarised():
    text = as_text(schedule("allreduce", "ring", 32))
    ring = "every rank r -> r + 1 (mod 32), 1 block each"
    assert f"  rounds 1-31: {ring}, reduced on arrival\n" in text
    assert f"  rounds 32-62: {ring}, stored\n" in text
    assert "What ranks 0, 16, 31 do" in text and "56 rounds like these" in text
    assert len(text.splitlines()) < 60


def test_thousands_of_ranks_take_no_time():
    text = as_text(schedule("allreduce", "ring", 100_000))
    assert "rounds      199998" in text and "closed forms" in text


def test_a_wrong_schedule_is_explained_with_the_reason():
    made = schedule("allreduce", swapped, 2)
    text = as_text(made)
    assert "WRONG" in text and "instead of the contributions of ranks [0, 1]" in " ".join(
        text.split())
    assert "0 -> 1: b0 of 0" in text
    assert as_json(made)["facts"]["proof"] is None


def test_a_stuck_rank_is_shown():
    text = as_text(schedule("allreduce", lonely, 2))
    assert "deadlock" in text and "never finishes" in text
    assert "no messages" in text


def test_lanes_are_told_one_by_one():
    made = schedule("bcast", str(EXAMPLES / "lanes.py") + ":PIPELINE", 3, n=2)
    text = as_text(made, rank=1)
    assert text.endswith("""\
  rank 1
   lane 0
      1  round 0: receive out[0] from 0
      2  round 1: receive out[1] from 0
   lane 1
      2  round 2, after round 0: send out[0] to 2
      3  round 3, after round 1: send out[1] to 2
"""), text
    assert "rounds      3, the longest chain" in text
    assert "  1 after []: recv 0 out[1]" in list(made.lines())
    assert as_json(made)["programs"][1]["after"] == [[], [], [0], [1]]

    assert "never  round" in as_text(schedule("bcast", lambda rank, size, root: Program(
        ((recv(1 - rank, at(OUT, 0)),), (send(1 - rank, at(OUT, 0)),)), (), ((), (0,))), 2))


def test_what_the_network_does_is_told():
    example = str(EXAMPLES / "in_network.py")
    made = schedule("allreduce", f"{example}:IN_PIECES", 3)
    text = as_text(made, rank=1)
    assert "needs       in-network reduction and multicast, which few transports support" in text
    assert "  round 1: the network reduces ranks 0-2 for rank 1: b1" in text
    assert "  round 2: multicast of rank 1 to ranks 0,2: b1" in text
    assert "messages    12 in all, at most 4 from one rank" in text
    words = " ".join(text.split())
    assert "pass out[0] to the network, which reduces 0-2 for 0;" in words
    assert "receive out[1] from the network's result of 0-2" in words
    assert words.endswith("multicast out[1] to 0,2; receive out[0] from 0, by multicast; "
                          "receive out[2] from 2, by multicast")
    assert as_json(made)["operations"][0] == {
        "round": 1, "sources": [0, 1, 2], "sinks": [0], "blocks": [0],
        "contributions": [[0, 1, 2]]}
    assert "multicast of rank 0 to rank 1: 1 block" in as_text(
        schedule("bcast", f"{example}:BCAST", 2), brief=True)
    assert "  1: send [0-2 > 0-2] out[0]; recv [0-2 > 0-2] out[0]" in list(
        schedule("allreduce", f"{example}:ALLREDUCE", 3).lines())
