"""Pictures of schedules for ranks with an order of their own."""


import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.topology import Topology


def dealt(shape):
    """The layout of ranks dealt out to the outermost groups in turn, as long as they have room."""
    plain = Topology.parse(shape)
    room, held = list(map(len, plain.groups())), [[] for _ in plain.groups()]
    rank = 0
    while rank < plain.size:
        for places, group in zip(room, held):
            if len(group) < places:
                group.append(rank)
                rank += 1
    return Topology(plain.tree, tuple(rank for group in held for rank in group))


@pytest.mark.parametrize("size", ["2x2@0,2,1,3", "4x8"])
def test_drawn(tmp_path, size):
    pytest.importorskip("matplotlib")
    from hpccoll.explain.space_time import _Sheet, draw
    layout = dealt(size) if "@" not in size else Topology.parse(size)
    made = schedule("allgather", "rails", topology=layout)
    sheet = _Sheet(made, 3)
    for group in layout.groups():  # ranks of a group stand together
        lines = sorted(sheet.y(rank) for rank in group)
        assert lines[-1] - lines[0] == pytest.approx(sheet.row * (len(group) - 1))
    draw(made, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").stat().st_size > 3000
