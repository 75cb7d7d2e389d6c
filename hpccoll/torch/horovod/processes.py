"""Horovod's initialisation, shutdown, ranks and process sets.

    init() --> global_process_set --add_process_set()--> sets of some of its ranks

Each process set has a separate communicator and a separate queue: operations on different sets do
not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError, CommunicatorError
from hpccoll.errors.agreement import compare
from hpccoll.torch import operations
from hpccoll.torch.operation_queue import OperationLine
from hpccoll.training.arguments import private_copy
from hpccoll.training.exchange import Exchange

#: Message text for calls before :func:`init` or after :func:`shutdown`.
START = "call hpccoll.torch.horovod.init() first"


class ProcessSet:
    """Subset of the ranks of the job.

    The set has no communicator before :func:`add_process_set`, which is collective.

    Args:
        ranks: ranks of the global process set, in the order of their ranks in this set; or an
            mpi4py communicator of these ranks.

    Attributes:
        ranks: ranks of the global process set.
        process_set_id: 0 for the global process set, ``None`` before it is added.

    Raises:
        ArgumentError: duplicate rank.
    """

    def __init__(self, ranks: Sequence[int] | MPI.Intracomm):
        self.process_set_id: int | None = None
        self.given = ranks if isinstance(ranks, MPI.Intracomm) else None
        self.ranks: list[int] = [] if isinstance(ranks, MPI.Intracomm) else list(ranks)
        if len(set(self.ranks)) < len(self.ranks):
            raise ArgumentError("ranks", f"duplicate rank in {self.ranks}")
        self._comm: Comm | None = None
        self._line: OperationLine | None = None
        self._exchange: Exchange | None = None
        self._ends: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    @property
    def comm(self) -> Comm:
        """Private communicator of the set.

        Raises:
            CommunicatorError: the set was not added, or does not contain this process.
        """
        if self._comm is None:
            raise CommunicatorError(
                START if self.process_set_id == 0 or self is global_process_set else
                f"{self} has not been added; every rank calls add_process_set" if
                self.process_set_id is None else
                f"this process is not in {self}; ask included() before using it")
        return self._comm

    @property
    def line(self) -> OperationLine:
        """Queue of pending operations; see :mod:`hpccoll.torch.operation_queue`."""
        if self._line is None:
            self._line = OperationLine(self.comm)
        return self._line

    @property
    def exchange(self) -> Exchange:
        """Exchange that matches tensors by name; its first use is collective."""
        if self._exchange is None:
            line = self.line
            line.run(operations.called_alike(line.comm, "the first reduction"))
            self._exchange = line.run(operations.call(lambda: Exchange(
                line.comm, op="sum", order="negotiated")))
            self.at_close(self.end_exchange)
        return self._exchange

    def end_exchange(self) -> None:
        """Close the exchange; the next reduction creates a new exchange on all ranks."""
        if self._exchange is not None:
            self._ends.remove(self.end_exchange)
            exchange, self._exchange = self._exchange, None
            exchange.close()

    def size(self) -> int:
        """Return the number of processes of the set."""
        return self.comm.Get_size()

    def rank(self) -> int:
        """Return the rank of this process in the set."""
        return self.comm.Get_rank()

    def included(self) -> bool:
        """Return True if the set contains this process."""
        if self.process_set_id is None:
            raise CommunicatorError(START if self is global_process_set else
                                    f"{self} has not been added; every rank calls add_process_set")
        return self._comm is not None

    def open(self, comm: MPI.Comm, ranks: Sequence[int], number: int) -> None:
        """Open the set with a communicator, which :meth:`close` frees; null on other ranks."""
        self.ranks, self.process_set_id = list(ranks), number
        self._comm = Comm(comm, progress="calls") if comm != MPI.COMM_NULL else None

    def close(self) -> None:
        """Finish pending operations and free the communicator; collective over its ranks."""
        for end in reversed(list(self._ends)):
            end()
        if self._line is not None:
            self._line.close()
        if self._comm is not None:
            self._comm.Free()
        self._comm = self._line = self.process_set_id = None
        self._ends.clear()

    def at_close(self, end: Callable[[], None]) -> None:
        """Register a function to call on close, in reverse order."""
        self._ends.append(end)


#: Set of all processes.
global_process_set = ProcessSet(())


class Places:
    """Position of this process in the machine."""

    def __init__(self, comm: MPI.Intracomm):
        local = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED, comm.Get_rank())
        self.local = local.Get_rank(), local.Get_size()
        local.Free()
        cross = MPI.Intracomm.Split(comm, self.local[0], comm.Get_rank())
        self.cross = cross.Get_rank(), cross.Get_size()
        cross.Free()
        self.homogeneous = len(set(comm.allgather(self.local[1]))) == 1
        self.sets: dict[int, ProcessSet] = {0: global_process_set}
        self.added = 0


_places: Places | None = None


def places() -> Places:
    """Return the position of this process.

    Raises:
        CommunicatorError: before :func:`init`.
    """
    if _places is None:
        raise CommunicatorError(START)
    return _places


def init(comm: MPI.Intracomm | Sequence[int] | None = None,
         process_sets: Sequence[ProcessSet] | None = None) -> None:
    """Initialise; collective over the processes; a second call does nothing.

    Args:
        comm: the processes: an mpi4py communicator, or ranks of ``MPI.COMM_WORLD`` (only these must
            call); all by default.
        process_sets: process sets to add.

    Raises:
        CommunicatorError: the ranks do not contain this process.
    """
    global _places
    if _places is not None:
        return
    if comm is None or isinstance(comm, MPI.Intracomm):
        own = private_copy(MPI.Intracomm(comm or MPI.COMM_WORLD))
    else:
        if MPI.COMM_WORLD.Get_rank() not in comm:
            raise CommunicatorError(f"rank {MPI.COMM_WORLD.Get_rank()} is not in {list(comm)}; "
                                    "call init only on these ranks")
        own = MPI.Intracomm(MPI.COMM_WORLD).Create_group(
            MPI.COMM_WORLD.Get_group().Incl(list(comm)))
    global_process_set.open(own, range(own.Get_size()), 0)
    _places = Places(own)
    for each in process_sets or ():
        add_process_set(each)


def shutdown() -> None:
    """Finish pending operations and free the communicators; collective."""
    global _places
    if _places is not None:
        for number in sorted(_places.sets, reverse=True):
            _places.sets[number].close()
        _places = None


def is_initialized() -> bool:
    """Return True between :func:`init` and :func:`shutdown`."""
    return _places is not None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a process set; collective over all ranks.

    All ranks pass the same ranks, or each its own communicator, such as one of a split.

    Raises:
        ArgumentError: the set was already added, has an invalid rank, or differs between ranks; the
            same error on all ranks.
    """
    where, whole = places(), global_process_set.comm
    new = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if new.process_set_id is not None:
        raise ArgumentError("process_set", f"{new} already exists")
    where.added += 1
    if new.given is not None:
        new.open(private_copy(MPI.Intracomm(new.given)), MPI.Group.Translate_ranks(
            new.given.Get_group(), range(new.given.Get_size()), whole.Get_group()), where.added)
    else:
        difference = compare(whole, [str(new.ranks)])
        if difference is not None:
            raise ArgumentError("process_set", f"differs between ranks: {difference}",
                                "add the same sets in the same order on all ranks")
        if any(not 0 <= rank < whole.Get_size() for rank in new.ranks):
            raise ArgumentError("process_set", f"{new.ranks} contains a rank outside of the "
                                               f"{whole.Get_size()} ranks")
        group = whole.Get_group().Incl(new.ranks)
        inside = whole.Get_rank() in new.ranks
        new.open(MPI.Intracomm.Create_group(whole, group, where.added) if inside
                 else MPI.COMM_NULL, new.ranks, where.added)
    where.sets[where.added] = new
    return new


def remove_process_set(process_set: ProcessSet) -> bool:
    """Free a process set on every rank; return ``False`` if it was not added."""
    number = process_set.process_set_id
    if not number or places().sets.get(number) is not process_set:
        return False
    del places().sets[number]
    process_set.close()
    return True


def rank() -> int:
    """Return the rank of this process."""
    return global_process_set.rank()


def size() -> int:
    """Return the number of processes."""
    return global_process_set.size()


def local_rank() -> int:
    """Return the rank of this process on its node."""
    return places().local[0]


def local_size() -> int:
    """Return the number of processes on this node."""
    return places().local[1]


def cross_rank() -> int:
    """Return the index of this node among the nodes with a process of this local rank."""
    return places().cross[0]


def cross_size() -> int:
    """Return the number of nodes with a process of this local rank."""
    return places().cross[1]


def is_homogeneous() -> bool:
    """Return True if all nodes have the same number of processes."""
    return places().homogeneous


def mpi_threads_supported() -> bool:
    """Return True if several threads may call MPI concurrently."""
    places()
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
