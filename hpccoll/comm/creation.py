"""Creation of communicators by native calls with a timeout.

Before such a call all ranks synchronize, so that a timeout names the missing ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from typing_extensions import Self

    from hpccoll.comm.communicator import Cart, Comm, Distgraph, Graph


class Creation(Base):
    """Methods that create communicators."""

    def _wrap(self, comm: MPI.Comm) -> Any:
        """Wrap an intracommunicator as ``hpccoll.Comm``; pass an intercommunicator unchanged."""
        raise NotImplementedError

    def _create_after_meeting(self, make: Callable[..., Any], *args: Any) -> Any:
        """Create a communicator with the MPI library, after all ranks have made the call.

        Raises:
            CollectiveTimeout, PeerLost, BrokenCommunicatorError: some ranks do not make it.
            ContractError: some ranks made another call.
        """
        lifetime, name, guard = self._check_alive(), make.__name__.lower(), self._known_guard()
        if self.Get_size() == 1:
            return make(*args)
        with lifetime.call_guard:
            # A failed call left messages on the private communicator, not on this one.
            if guard is None or lifetime.raise_failure is not None:
                with self._setup(name):
                    return make(*args)
            return guard.run_after_meeting(make, Description(name))(*args)

    def Clone(self) -> Self:
        """Duplicate the communicator, without its attributes' values."""
        return self._create_after_meeting(super().Clone)

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """Duplicate the communicator."""
        return self._create_after_meeting(super().Dup, info)

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """Duplicate the communicator with new hints."""
        return self._create_after_meeting(super().Dup_with_info, info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Start to duplicate; waits have a timeout after the communicator's first collective."""
        return self._begin_duplicate(super().Idup, info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """Start to duplicate the communicator with new hints; see :meth:`Idup`."""
        return self._begin_duplicate(super().Idup_with_info, info)

    def _begin_duplicate(self, begin: Callable[..., tuple[Self, MPI.Request]], *args: Any
                         ) -> tuple[Self, MPI.Request]:
        guard, pending = self._known_guard(), self._check_alive().duplicates
        made = begin(*args) if guard is None else guard.begin_duplicate(begin, *args)
        pending[:] = [*filter(None, pending), made[1]]
        return made

    def Create(self, group: MPI.Group) -> Comm:
        """Create a communicator of a group of this one's ranks."""
        return self._wrap(self._create_after_meeting(super().Create, group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """Create a communicator of a group; only its members call."""
        from hpccoll.guard.setup import SetupCall
        self._check_alive()
        with SetupCall(group, "create_group", self._config):
            return self._wrap(super().Create_group(group, tag))

    def Create_intercomm(self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int,
                         tag: int = 0) -> MPI.Intercomm:
        """Create an intercommunicator; synchronizes the local ranks, not the remote ones."""
        return self._create_after_meeting(super().Create_intercomm, local_leader, peer_comm,
                                          remote_leader, tag)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split into one communicator per color; null for ``MPI.UNDEFINED``."""
        return self._wrap(self._create_after_meeting(super().Split, color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Split by a shared resource, such as a node."""
        return self._wrap(self._create_after_meeting(super().Split_type, split_type, key, info))

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None,
                    reorder: bool = False) -> Cart:
        """Create a communicator with a Cartesian topology."""
        return self._wrap(self._create_after_meeting(super().Create_cart, dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int],
                     reorder: bool = False) -> Graph:
        """Create a communicator with a graph topology."""
        return self._wrap(self._create_after_meeting(super().Create_graph, index, edges, reorder))

    def Create_dist_graph_adjacent(self, sources: Sequence[int], destinations: Sequence[int],
                                   sourceweights: Sequence[int] | None = None,
                                   destweights: Sequence[int] | None = None,
                                   info: MPI.Info = MPI.INFO_NULL,
                                   reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology; each rank passes its neighbours."""
        return self._wrap(self._create_after_meeting(
            super().Create_dist_graph_adjacent, sources, destinations, sourceweights, destweights,
            info, reorder))

    def Create_dist_graph(self, sources: Sequence[int], degrees: Sequence[int],
                          destinations: Sequence[int], weights: Sequence[int] | None = None,
                          info: MPI.Info = MPI.INFO_NULL, reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology; any rank passes any edges."""
        return self._wrap(self._create_after_meeting(
            super().Create_dist_graph, sources, degrees, destinations, weights, info, reorder))
