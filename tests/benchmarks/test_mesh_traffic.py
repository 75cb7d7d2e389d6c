"""What groups send: closed forms, what crosses nodes, and links that groups share."""

import pytest
from mesh_traffic import Transformer, traffic

from hpccoll import schedule, simulate
from hpccoll.training.groups.placement import place

MODEL = Transformer(parameters=1_200_000, layers=6, hidden=48, sequence=240, batch=2, itemsize=2,
                    gradient_itemsize=4, expert_layers=2, experts_per_token=2)
ACTIVATIONS = 240 * 48 * 2 * 2


def rows(layout, model=MODEL, **sizes):
    return {row.axes: row for row in traffic(place(layout, **sizes), model)}


@pytest.mark.parametrize("layout, p", [("1x2", 2), ("3", 3), ("2x4", 8), ("5x1", 5)])
def test_each_axis_sends_its_closed_form(layout, p):
    part = (p - 1) / p
    wanted = {
        "dp": (1, 1_200_000 * 4, 2 * part), "tp": (24, ACTIVATIONS, 2 * part),
        "sp": (48, ACTIVATIONS / p, part), "ep": (8, 2 * ACTIVATIONS, part),
        "pp": (2, ACTIVATIONS, part)}
    for axis, (calls, nbytes, share) in wanted.items():
        row = rows(layout, **{axis: p})[(axis,)]
        assert (row.calls, row.nbytes) == (calls, nbytes)
        assert row.sent == pytest.approx(calls * nbytes * share)


def test_axes_divide_what_others_send():
    found = rows("2x8", tp=2, pp=2, sp=2)
    assert found["dp", "sp"].nbytes == 1_200_000 * 4 / 4
    assert found["tp",].calls == 24 / 2 and found["tp",].nbytes == ACTIVATIONS / 2
    assert found["sp",].nbytes == ACTIVATIONS / 2 / 2
    assert found["sp",].sent == 24 * (ACTIVATIONS / 4) / 2
    assert found["pp",].nbytes == ACTIVATIONS / 2
    assert ("ep",) not in found


def test_what_crosses_nodes_is_what_leaves_them():
    found = rows("4x2", tp=2)
    assert found["tp",].across == 0 and found["tp",].sent > 0
    # Every rank of a data-parallel group is on a node of its own, so all it sends crosses.
    assert found["dp",].across == pytest.approx(8 * found["dp",].sent)
    # Two ranks of the group on every node: a half of the vector is reduced inside first.
    shared = rows("2x2")["dp",]
    assert shared.across == pytest.approx(4 * 2 * (1_200_000 * 4 / 2) / 2)
    assert rows("8")["dp",].across == 0


def test_every_call_takes_its_time():
    once, twice = (rows("2x4", Transformer(0, layers, 64, 64), tp=4)["tp",] for layers in (1, 2))
    assert twice.calls == 2 * once.calls == 8 and twice.nbytes == once.nbytes
    assert twice.seconds == pytest.approx(2 * once.seconds) and once.seconds > 0
    call = simulate(schedule("allreduce", "ring", 4), once.nbytes, topology="1x4").seconds
    assert once.seconds == pytest.approx(4 * call)


def test_groups_share_the_links_of_their_nodes():
    together = rows("8x8", tp=8)["dp",].seconds
    alone = simulate(schedule("allreduce", "rails", topology="8x1"), 1_200_000 * 4 / 8).seconds
    assert together > 1.5 * alone


def test_uneven_nodes_are_costed_too():
    found = rows("3,5", tp=2)
    assert found["tp",].across == pytest.approx(24 * 2 * ACTIVATIONS)
    assert found["dp",].sent == pytest.approx(2 * 600_000 * 4 * 3 / 4)


def test_one_rank_sends_nothing():
    assert rows("1") == {} and rows("1x4", Transformer(0, 0, 8, 8)) == {}
