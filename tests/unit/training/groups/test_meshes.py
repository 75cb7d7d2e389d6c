"""Meshes: communicators along axes, in the order of coordinates, and what they tell."""

import pytest

from hpccoll.errors import ArgumentError, CommunicatorError
from hpccoll.training.groups import AXES, mesh
from support.threads import run_ranks


@pytest.mark.parametrize("size, layout, sizes", [
    (1, "1", {}), (3, "3", {"tp": 3}), (8, "2x4", {"tp": 2, "pp": 2}),
    (8, "3,5", {"tp": 2, "sp": 2}), (8, "2x4@0-6/2,1-7/2", {"tp": 4}), (7, "7", {})])
def test_every_axis_has_a_communicator_of_its_group(size, layout, sizes):
    def function(comm):
        made = mesh(comm, **sizes)
        members = {axis: tuple(getattr(made, axis).allgather(comm.rank)) for axis in AXES}
        names = {axis: getattr(made, axis).Get_name() for axis in AXES}
        assert made.coordinates == {axis: getattr(made, axis).rank for axis in AXES}
        assert made.sizes == {axis: getattr(made, axis).size for axis in AXES}
        assert names == {axis: axis for axis in AXES}
        return members, made.placement

    for rank, (members, placement) in enumerate(run_ranks(size, function, layout=layout)):
        for axis in AXES:
            assert rank in members[axis] and members[axis] in placement.groups(axis)


def test_axes_together_are_one_communicator_and_made_once():
    def function(comm):
        made = mesh(comm, tp=2, sp=2)
        both = made.over("sp", "dp")
        assert made.over("dp", "sp") is both and made.over("tp") is made.tp
        assert both.Get_name() == "dpxsp" and made.over().size == 1
        return both.allgather(comm.rank)

    results = run_ranks(8, function, layout="2x4")
    assert results == [[0, 2, 4, 6] if rank % 2 == 0 else [1, 3, 5, 7] for rank in range(8)]


def test_text_needs_no_communication():
    def function(comm):
        made = mesh(comm, tp=2)
        return str(made) if comm.rank == 0 else None

    lines = run_ranks(4, function, layout="2x2")[0].splitlines()
    assert lines[0] == "mesh of 4 ranks on 2x2: dp=2 tp=2"


def test_sizes_that_do_not_fit_are_an_error_on_all_ranks():
    def function(comm):
        with pytest.raises(ArgumentError, match="tp=3.*4 ranks"):
            mesh(comm, tp=3)
        with pytest.raises(ArgumentError, match="axis xp"):
            mesh(comm).over("xp")
        return comm.allreduce(1)

    assert run_ranks(4, function) == [4] * 4


def test_free_frees_the_groups_and_not_the_communicator():
    def function(comm):
        made = mesh(comm)
        dp = made.dp
        made.Free()
        with pytest.raises(CommunicatorError):
            dp.Barrier()
        comm.Barrier()

    run_ranks(2, function)
