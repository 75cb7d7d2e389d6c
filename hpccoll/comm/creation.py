"""Creation of communicators by native calls with a timeout.

Before such a call all ranks synchronize, so that a timeout names the missing ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from typing_extensions import Self


class Creation(Base):
    """Methods that create communicators."""

    def _create_after_meeting(self, make: Callable[..., Any], *args: Any) -> Any:
        """Create a communicator with the MPI library, after all ranks have made the call.

        Raises:
            CollectiveTimeout, PeerLost, BrokenCommunicatorError: some ranks do not make it.
            ContractError: some ranks made another call.
        """
        lifetime, name, library = self._check_alive(), make.__name__.lower(), self._known_library()
        if self.Get_size() == 1:
            return make(*args)
        with lifetime.call_guard:
            # A failed call left messages on the private communicator, not on this one.
            if library is None or lifetime.raise_failure is not None:
                with self._setup(name):
                    return make(*args)
            return library.run_after_meeting(make, Description(name))(*args)

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
        library, pending = self._known_library(), self._check_alive().duplicates
        made = begin(*args) if library is None else library.begin_duplicate(begin, *args)
        pending[:] = [*filter(None, pending), made[1]]
        return made

    def Create_intercomm(self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int,
                         tag: int = 0) -> MPI.Intercomm:
        """Create an intercommunicator; synchronizes the local ranks, not the remote ones."""
        return self._create_after_meeting(super().Create_intercomm, local_leader, peer_comm,
                                          remote_leader, tag)
