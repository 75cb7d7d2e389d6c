"""Communicators of threads, and those made from them."""

from mpi4py import MPI

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
