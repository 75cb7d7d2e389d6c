"""Placement: inner groups inside nodes, every rank once, and sizes that fit."""

import math

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.groups.placement import AXES, place

MESHES = [
    ("1", {}), ("2", {"tp": 2}), ("3", {"sp": 3}), ("5", {}), ("7", {"pp": 7}), ("8", {"tp": 2}),
    ("2x4", {"tp": 2, "pp": 2}), ("2x4", {"tp": 8}), ("3,5", {"tp": 2}), ("3,5", {"sp": 4}),
    ("2x4@0-6/2,1-7/2", {"tp": 4}), ("2x2x3", {"tp": 3, "ep": 2}), ("(2,3),(4)", {"sp": 3}),
    ("4x2", {"tp": 2, "sp": 2, "ep": 2}), ("3x1", {"tp": 3})]


@pytest.mark.parametrize("layout, sizes", MESHES)
def test_groups_of_every_axis_share_out_the_ranks(layout, sizes):
    mesh = place(layout, **sizes)
    everybody = list(range(len(mesh.ranks)))
    assert sorted(mesh.ranks) == everybody and math.prod(mesh.shape) == len(everybody)
    assert {axis: mesh.sizes[axis] for axis in sizes} == sizes
    for axis in AXES:
        groups = mesh.groups(axis)
        assert sorted(sum(groups, ())) == everybody
        for group in groups:
            for number, rank in enumerate(group):
                # Along the axis the coordinate is the place in the group; all others are alike.
                mine, first = mesh.coordinates(rank), mesh.coordinates(group[0])
                assert mine == {**first, axis: number}
    whole = mesh.groups(*AXES)
    assert whole == [mesh.ranks]
    places = [tuple(mesh.coordinates(rank).values()) for rank in mesh.ranks]
    assert places == sorted(set(places))


def test_the_inner_axis_lies_inside_nodes_however_ranks_are_numbered():
    assert place("2x4@0-6/2,1-7/2", tp=4).groups("tp") == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert place("2x4@0-6/2,1-7/2", tp=4).groups("dp") == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_what_is_left_of_nodes_forms_groups_and_no_other_group_is_cut():
    mesh = place("3,5", tp=2)
    assert mesh.groups("tp") == [(0, 1), (2, 7), (3, 4), (5, 6)]
    assert [mesh.nodes(group) for group in mesh.groups("tp")] == [1, 2, 1, 1]
    mesh = place("5,5,2", tp=4)
    assert mesh.groups("tp") == [(0, 1, 2, 3), (4, 9, 10, 11), (5, 6, 7, 8)]
    assert [mesh.nodes(group) for group in mesh.groups("tp")] == [1, 3, 1]


def test_near_nodes_are_joined_before_far_ones():
    mesh = place("2x3x2", tp=2, sp=3)
    assert mesh.groups("sp") == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11)]
    mesh = place("2x3x2", tp=2, sp=2)
    assert [{rank // 6 for rank in group} for group in mesh.groups("sp", "tp")] == [
        {0}, {0, 1}, {1}]


def test_another_order_puts_another_axis_inside():
    mesh = place("2x4", ("pp", "tp", "ep", "sp", "dp"), tp=2)
    assert mesh.groups("dp") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert mesh.groups("tp") == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("sizes, inferred", [
    ({}, {"dp": 8}), ({"tp": 2}, {"dp": 4}), ({"tp": -1}, {"tp": 8, "dp": 1}),
    ({"tp": -1, "dp": 2}, {"tp": 4}), ({"dp": -1, "pp": 4}, {"dp": 2}),
    ({"dp": None, "tp": None}, {"dp": 8}), ({"dp": 2, "tp": 2, "sp": 2}, {"ep": 1, "pp": 1})])
def test_one_size_is_what_the_others_leave(sizes, inferred):
    mesh = place("8", **sizes)
    assert {axis: mesh.sizes[axis] for axis in inferred} == inferred


@pytest.mark.parametrize("sizes, words", [
    ({"tp": 3}, "mesh: tp=3 = 3 does not divide the 8 ranks"),
    ({"tp": 3, "dp": 2}, "mesh: dp=2 x tp=3 = 6 is not the 8 ranks"),
    ({"tp": 4, "dp": 4}, "mesh: dp=4 x tp=4 = 16 is not the 8 ranks"),
    ({"dp": 1}, "mesh: dp=1 = 1 is not the 8 ranks"),
    ({"dp": -1, "tp": -1}, "mesh: dp and tp are both -1"),
    ({"tp": 0}, "tp: expected a number of ranks or -1, got 0"),
    ({"tp": -2}, "got -2"), ({"tp": 2.0}, "got 2.0"), ({"tp": True}, "got True"),
    ({"xp": 2}, "mesh: axis xp does not exist; choose from pp, dp, ep, sp, tp")])
def test_sizes_that_do_not_fit(sizes, words):
    with pytest.raises(ArgumentError) as caught:
        place("2x4", **sizes)
    assert words in str(caught.value)


def test_unknown_axes_are_named():
    with pytest.raises(ArgumentError, match="order: .*dp, tp.*pp, dp"):
        place("2", ("dp", "tp"))
    with pytest.raises(ArgumentError, match="np, xp"):
        place("2").groups("xp", "dp", "np")
