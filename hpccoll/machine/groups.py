"""Groups of communicators, and communicators of the same group."""

from __future__ import annotations

from mpi4py import MPI

from hpccoll.transport.private_comm import PrivateComm


def group_of(comm: MPI.Comm) -> MPI.Group:
    """Return the ranks of a communicator; the caller frees the group.

    For a Cartesian or graph communicator that leaves ranks over, and for its duplicates, MPICH 5
    returns the group of the communicator that it was made from. Its first ranks are the right ones.
    """
    group, size = comm.Get_group(), comm.Get_size()
    if group.Get_size() == size:
        return group
    ranks = group.Incl(range(size))
    group.Free()
    return ranks


def private_copy(comm: MPI.Intracomm) -> PrivateComm:
    """Return a new communicator of the same ranks; collective.

    Unlike Dup, this copies no attributes, whose callbacks are the program's, and no hints. It takes
    about as long as Dup; Split takes more.
    """
    group = group_of(comm)
    copy = PrivateComm(MPI.Intracomm.Create(comm, group))
    group.Free()
    copy.Set_errhandler(MPI.ERRORS_RETURN)
    return copy


def world_ranks(comm: MPI.Comm | MPI.Group) -> tuple[int, ...]:
    """Return the ranks in ``COMM_WORLD``; ``MPI.UNDEFINED`` for those of other jobs."""
    world = MPI.COMM_WORLD.Get_group()
    group = comm if isinstance(comm, MPI.Group) else group_of(comm)
    ranks = tuple(group.Translate_ranks(None, world))
    world.Free()
    if group is not comm:
        group.Free()
    return ranks
