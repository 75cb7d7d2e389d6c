"""Communicators of threads, and those made from them."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import CommunicatorError
from support.threads import run_ranks


def test_a_split_has_its_ranks_in_the_order_of_the_keys():
    def function(comm):
        half = comm.Split(comm.rank % 2, -comm.rank)
        again = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
        return half.rank, half.allgather(comm.rank), again == MPI.COMM_NULL

    for rank, (mine, members, null) in enumerate(run_ranks(5, function)):
        assert members == ([4, 2, 0], [3, 1])[rank % 2]
        assert members[mine] == rank and null == (rank > 1)


def test_nodes_are_those_of_the_layout():
    def function(comm):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        across = comm.Split(node.rank)
        return str(comm.layout), node.allgather(comm.rank), str(node.layout), str(across.layout)

    results = run_ranks(5, function, layout="3,2@0,2,4,1,3")
    assert results[4] == ("3,2@0-4/2,1,3", [0, 2, 4], "3", "1")
    assert results[3] == ("3,2@0-4/2,1,3", [1, 3], "2", "2x1")


def test_without_a_layout_all_ranks_are_near():
    assert run_ranks(3, lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED).size) == [3] * 3


def test_a_group_is_made_by_its_members_alone():
    def function(comm):
        if comm.rank == 1:
            return None
        first, second = comm.Create_group([2, 0]), comm.Create_group([2, 0])
        assert second.circle is not first.circle
        return first.rank, first.allgather(comm.rank)

    assert run_ranks(3, function) == [(1, [2, 0]), None, (0, [2, 0])]


def test_a_freed_communicator_is_an_error_and_its_parent_is_not():
    def function(comm):
        copy = comm.Dup()
        copy.Barrier()
        copy.Free()
        for call in copy.Barrier, copy.Free, lambda: copy.isend(1, 0), copy.irecv:
            with pytest.raises(CommunicatorError, match="freed"):
                call()
        comm.Barrier()

    run_ranks(2, function)


def test_names_and_memory():
    def function(comm):
        comm.Set_name("mine")
        assert comm.Get_name() == "mine" and comm.Dup().Get_name() == ""
        assert comm.zeros((2, 3), "f4").sum() == 0 and comm.empty(4).shape == (4,)
        return comm.empty(2, numpy.int8).dtype

    assert run_ranks(1, function) == [numpy.dtype("i1")]
