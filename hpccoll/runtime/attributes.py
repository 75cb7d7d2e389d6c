"""The context of a communicator as an MPI attribute, without the modules of contexts.

A program without a call that hpccoll runs has no context, and does not load these modules.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, cast

from mpi4py import MPI

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

_keyvals: list[int] = []
#: All contexts of this process that are still referenced.
CONTEXTS: weakref.WeakSet[Context] = weakref.WeakSet()


def existing_context(user: MPI.Intracomm) -> Context | None:
    """Return the context of a communicator, or None; never communicates."""
    return cast("Context | None", user.Get_attr(_keyvals[0])) if _keyvals else None


def stop_all_starts() -> None:
    """Call :meth:`Context.stop_starts` of all contexts, in a forked process."""
    for context in list(CONTEXTS):
        context.stop_starts()


def keyval() -> int:
    """Return the attribute key, created on first use (not inherited by ``Dup``)."""
    if not _keyvals:
        _keyvals.append(MPI.Comm.Create_keyval(
            delete_fn=lambda comm, key, context: None if MPI.Is_finalized() else context.free()))
    return _keyvals[0]
