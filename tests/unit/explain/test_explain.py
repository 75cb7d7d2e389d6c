"""Explanations: in words, as data, as a picture."""

import json
import subprocess
import sys

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import as_json, as_text, draw
from hpccoll.explain.replay import facts, ranks_of, timeline
from hpccoll.explain.text import WANTS
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import LEFT, Program, Span, Step, at, copy, recv, send
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove

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


@pytest.mark.parametrize("collective, algorithm", FLAT)
def test_replay_agrees_with_the_proof(collective, algorithm):
    for size in (1, 2, 3, 5, 8):
        agree(schedule(collective, algorithm, size, root=size // 2))


@pytest.mark.parametrize("collective, algorithm", LAYERED)
def test_layers_are_explained(collective, algorithm):
    for layout in ("2x3", "3,1,2", "2x2x2"):
        made = schedule(collective, algorithm, topology=layout, root=4)
        agree(made)
        text = as_text(made)
        assert f"topology={layout}" in text
        assert "WRONG" not in text and "never" not in text and "nobody wrote" not in text
        assert as_json(made)["topology"] == layout


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


def test_every_collective_is_put_in_words():
    assert set(WANTS) == set(COLLECTIVES)


@pytest.mark.parametrize("collective, algorithm", FLAT)
def test_every_algorithm_is_explained(collective, algorithm):
    for size in (1, 2, 7, 17):
        text = as_text(schedule(collective, algorithm, size), nbytes=1000)
        assert text.startswith(f"{collective} {algorithm} size={size}")
        assert "WRONG" not in text and "never" not in text and "nobody wrote" not in text
        assert max(map(len, text.splitlines())) <= 100


def test_text_of_a_small_ring():
    text = as_text(schedule("allreduce", "ring", 3), nbytes=3 << 20)
    assert "Wanted: every rank ends with the vector reduced over all ranks." in text
    assert "Payload: a vector cut into 3 blocks of 1 MiB." in text
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
    assert "nobody: all work is local" in as_text(schedule("alltoall", "linear", 1))


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
    assert "nobody" in text


@pytest.mark.parametrize("collective, algorithm", FLAT)
def test_json_reads_back_unchanged_and_complete(collective, algorithm):
    made = schedule(collective, algorithm, 5, root=3)
    data = as_json(made)
    assert json.loads(json.dumps(data)) == data
    assert list(data) == ["format", "title", "collective", "algorithm", "size", "root", "nblocks",
                          "params", "topology", "digest", "wanted", "facts", "messages", "programs"]
    for rank, program in enumerate(data["programs"]):
        spans = {s["kind"]: s for steps in program["rounds"] for s in steps}
        assert all(list(s) == ["kind", "peer", "side", "spans", "source"] for s in spans.values())
        rounds = tuple(tuple(Step(s["kind"], s["peer"], tuple(Span(*x) for x in s["spans"]),
                                  tuple(Span(*x) for x in s["source"]), s["side"]) for s in steps)
                       for steps in program["rounds"])
        assert (rounds, program["scratch"]) == (
            made.program(rank).rounds, list(made.program(rank).scratch))


@pytest.mark.parametrize("collective, algorithm, size", [
    ("allreduce", "ring", 2), ("alltoall", "linear", 5), ("barrier", "linear", 4),
    ("bcast", "linear", 1), ("allgather", "ring", 17)])
def test_a_picture_is_drawn(tmp_path, collective, algorithm, size):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    draw(schedule(collective, algorithm, size), path, nbytes=1 << 20)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_pictures_of_wrong_schedules_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for number, build in enumerate((swapped, lonely)):
        draw(schedule("allreduce", build, 2), tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_that_cannot_be_drawn(tmp_path):
    with pytest.raises(ArgumentError, match="65 ranks do not fit"):
        draw(schedule("allreduce", "recursive_doubling", 65), tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="rounds do not fit"):
        draw(schedule("bcast", "circulant", 2, n=1000), tmp_path / "x.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(ArgumentError, match="ends in no known format; choose from .*png"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "x.xyz")
    with pytest.raises(ArgumentError, match="cannot write"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "nowhere" / "x.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match=r"pip install 'hpccoll\[plot\]'"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "x.png")


def test_importing_needs_the_standard_library_only():
    code = ("import sys, hpccoll.explain; "
            "print([m for m in ('numpy', 'mpi4py', 'matplotlib', 'click') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
