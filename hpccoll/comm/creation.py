"""Communicators made from a communicator, by calls of the MPI library's that are bounded.

Before such a call all ranks meet: who is missing is named as in every other collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.guard.setup import SetupCall
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from typing_extensions import Self

    from hpccoll.comm.communicator import Cart, Comm, Distgraph, Graph


class Creation(Base):
    """Methods that make communicators."""

    def _wrap(self, comm: MPI.Comm) -> Any:
        """An intracommunicator as one of ours; an intercommunicator as it is."""
        raise NotImplementedError

    def _together(self, make: Callable[..., Any], *args: Any) -> Any:
        """Call the MPI library to make a communicator, once all ranks have come to the call.

        Raises:
            CollectiveTimeout, PeerLost, BrokenCommunicatorError: some will not.
            ContractError: some are in another call.
        """
        lifetime, name, guard = self._check_alive(), make.__name__.lower(), self._known_guard()
        if self.Get_size() == 1:
            return make(*args)
        with lifetime.entrance:
            # A call that has failed left messages on the private communicator, not on this one.
            if guard is None or lifetime.refuse is not None:
                with self._setup(name):
                    return make(*args)
            return guard.together(make, Description(name))(*args)

    def Clone(self) -> Self:
        """Duplicate the communicator, without its attributes' values."""
        return self._together(super().Clone)

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """Duplicate the communicator."""
        return self._together(super().Dup, info)

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """Duplicate the communicator, with hints of its own."""
        return self._together(super().Dup_with_info, info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Begin to duplicate the communicator; its waits are bounded after the first collective."""
        return self._begin_duplicate(super().Idup, info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """Begin to duplicate the communicator, with hints of its own; see :meth:`Idup`."""
        return self._begin_duplicate(super().Idup_with_info, info)

    def _begin_duplicate(self, begin: Callable[..., tuple[Self, MPI.Request]], *args: Any
                         ) -> tuple[Self, MPI.Request]:
        guard = self._known_guard()
        return begin(*args) if guard is None else guard.begin_duplicate(begin, *args)

    def Create(self, group: MPI.Group) -> Comm:
        """Create a communicator of a group of this one's ranks."""
        return self._wrap(self._together(super().Create, group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """Create a communicator of a group; only its members call."""
        self._check_alive()
        with SetupCall(group, "create_group", self._config):
            return self._wrap(super().Create_group(group, tag))

    def Create_intercomm(self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int,
                         tag: int = 0) -> MPI.Intercomm:
        """Create an intercommunicator; the local ranks meet, the remote ones need not have come."""
        return self._together(super().Create_intercomm, local_leader, peer_comm, remote_leader, tag)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split into one communicator per color; null where it is ``MPI.UNDEFINED``."""
        return self._wrap(self._together(super().Split, color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Split by what ranks share, such as a node."""
        return self._wrap(self._together(super().Split_type, split_type, key, info))

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None,
                    reorder: bool = False) -> Cart:
        """Create a communicator with a Cartesian topology."""
        return self._wrap(self._together(super().Create_cart, dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int],
                     reorder: bool = False) -> Graph:
        """Create a communicator with a graph topology."""
        return self._wrap(self._together(super().Create_graph, index, edges, reorder))

    def Create_dist_graph_adjacent(self, sources: Sequence[int], destinations: Sequence[int],
                                   sourceweights: Sequence[int] | None = None,
                                   destweights: Sequence[int] | None = None,
                                   info: MPI.Info = MPI.INFO_NULL,
                                   reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology, each rank naming its neighbours."""
        return self._wrap(self._together(
            super().Create_dist_graph_adjacent, sources, destinations, sourceweights, destweights,
            info, reorder))

    def Create_dist_graph(self, sources: Sequence[int], degrees: Sequence[int],
                          destinations: Sequence[int], weights: Sequence[int] | None = None,
                          info: MPI.Info = MPI.INFO_NULL, reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology, any rank naming any edges."""
        return self._wrap(self._together(
            super().Create_dist_graph, sources, degrees, destinations, weights, info, reorder))
