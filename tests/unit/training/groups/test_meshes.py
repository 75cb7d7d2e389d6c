"""Meshes: communicators along axes, in the order of coordinates, and what they tell."""

import pytest

from hpccoll.errors import ArgumentError, CommunicatorError
from hpccoll.training.groups import mesh
from support.threads import run_ranks


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
