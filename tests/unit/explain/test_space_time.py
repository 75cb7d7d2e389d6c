"""Pictures of schedules in space and time, and their replay."""

import sys

import pytest
from unit.explain.explained import FLAT, agree

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import draw, plotting
from hpccoll.explain.replay import ranks_of, timeline
from hpccoll.explain.space_time import plot_schedule
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.in_network import in_network
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, send
from support.extra_schedules import extra_schedules


# Space-time pictures
def summed(rank, size):
    """The network adds up."""
    everybody = in_network(range(size), range(size))
    return Program(((copy(at(OUT, 0), at(IN, 0)),),
                    (send(everybody, at(OUT, 0)), recv(everybody, at(OUT, 0)))))


@pytest.mark.parametrize("collective, algorithm, size", [
    ("allreduce", "ring", 2), ("alltoall", "linear", 5), ("barrier", "linear", 4),
    ("bcast", "linear", 1), ("allgather", "ring", 17)])
def test_a_picture_is_drawn(tmp_path, collective, algorithm, size):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    draw(schedule(collective, algorithm, size), path, nbytes=1 << 20)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_pictures_that_cannot_be_drawn(tmp_path):
    with pytest.raises(ArgumentError, match="257"):
        draw(schedule("allreduce", "recursive_doubling", 257), tmp_path / "x.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(ArgumentError, match="suffix.*png"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "x.xyz")
    with pytest.raises(ArgumentError, match="cannot write"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "nowhere" / "x.png")


@pytest.mark.slow
@pytest.mark.parametrize("made", [
    lambda: schedule("allreduce", "ring", 33), lambda: schedule("bcast", "circulant", 2, n=1000),
    lambda: schedule("allreduce", "rails", topology="5x8")])
def test_too_many_messages_to_follow_are_summed_up(tmp_path, made):
    """A ring of 64 ranks was once a picture of 10 MB."""
    pytest.importorskip("matplotlib")
    draw(made(), tmp_path / "x.png", nbytes="1M")
    assert (tmp_path / "x.png").stat().st_size < 200_000
    figure = plot_schedule(made())
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0].startswith("blocks from rank") and "messages in all" in titles[1]


def test_nodes_are_named_and_the_title_is_in_words():
    pytest.importorskip("matplotlib")
    texts = [text.get_text() for text in
             plot_schedule(schedule("allreduce", "rails", topology="2x4")).axes[0].texts]
    assert {"node 0", "node 1", "rank 7"} <= set(texts)
    assert "allreduce by rails, 8 ranks, layout 2x4, 8 blocks" in texts
    assert "node 0" not in [text.get_text() for text in
                            plot_schedule(schedule("allreduce", "ring", 4)).axes[0].texts]


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match=r"'hpccoll\[plot\]'"):
        draw(schedule("allreduce", "ring", 2), tmp_path / "x.png")


def test_what_the_network_does_goes_through_boxes():
    pytest.importorskip("matplotlib")
    for made in extra_schedules(3, range(1)):
        axes, = plot_schedule(made).axes
        boxes = [line for line in axes.lines if line.get_marker() == "s"]
        words = [text.get_text() for text in axes.texts]
        operations = timeline(made).operations
        # One more in the legend.
        assert len(boxes) == (len(operations) + 1 if operations and made.nblocks and
                              made.collective.name != "barrier" else len(operations))
        if made.collective.name == "bcast" and operations:
            assert "copied by the network" in words
        if made.algorithm == "summed":
            assert "copied or reduced by the network" in words
    assert plot_schedule(schedule("allreduce", summed, 40)).axes


# Figures: formats and folders that a picture can be drawn into
def test_formats_and_folders(tmp_path):
    pytest.importorskip("matplotlib")
    plotting.check(str(tmp_path / "x.png"))
    for path, problem in ((tmp_path / "x.xyz", "has an unknown suffix"),
                          (tmp_path / "no" / "x.png", "cannot write")):
        with pytest.raises(ArgumentError, match=problem):
            plotting.check(str(path))


# The replay: what messages carry, as the proof counts it


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
