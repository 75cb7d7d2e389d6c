"""Space-time pictures."""

import sys

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import draw
from hpccoll.explain.replay import timeline
from hpccoll.explain.space_time import plot_schedule
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.in_network import in_network
from hpccoll.ir.schedule import Program, at, copy, recv, send
from support.extra_schedules import extra_schedules


def swapped(rank, size):
    """Ranks 0 and 1 exchange their contributions and forget their own: wrong on purpose."""
    return Program(((send(1 - rank, at(IN, 0)), recv(1 - rank, at(OUT, 0))),))


def summed(rank, size):
    """The network adds up."""
    everybody = in_network(range(size), range(size))
    return Program(((copy(at(OUT, 0), at(IN, 0)),),
                    (send(everybody, at(OUT, 0)), recv(everybody, at(OUT, 0)))))


def lonely(rank, size):
    """Rank 0 sends what nobody receives."""
    return Program(((send(1, at(IN, 0)),), (copy(at(OUT, 0), at(IN, 0)),)) if rank == 0 else
                   ((copy(at(OUT, 0), at(IN, 0)),),))


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


@pytest.mark.parametrize("made", [
    lambda: schedule("allreduce", "ring", 8), lambda: schedule("allgather", "bruck", 32)])
def test_letters_can_be_read_in_a_page(made):
    """No text is smaller than 8 pixels where the picture is 830 pixels wide."""
    pytest.importorskip("matplotlib")
    figure = plot_schedule(made())
    pixels = 830 / figure.get_size_inches()[0] / 72
    small = [text.get_text() for axes in figure.axes for text in axes.texts
             if text.get_size() * pixels < 8]
    assert not small


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
