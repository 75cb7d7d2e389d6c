"""Space-time pictures."""

import sys

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import draw
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send


def swapped(rank, size):
    """Ranks 0 and 1 exchange their contributions and forget their own: wrong on purpose."""
    return Program(((send(1 - rank, at(IN, 0)), recv(1 - rank, at(OUT, 0))),))


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
