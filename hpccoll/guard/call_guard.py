"""Lock of a communicator: admits one call at a time from all threads.

Ranks could mistake messages of two concurrent calls for each other. So a call takes this lock. A
second call raises an error with the call site of the first, before it sends a message. The compiled
executor takes the lock in C with one comparison, while it holds the GIL.

The second call does not wait: MPI does not order calls of two threads, so ranks could disagree.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from hpccoll.errors import ConcurrentCallError
from hpccoll.runtime.execution.built import BUILT

if BUILT:
    from hpccoll.runtime.execution import _executor


class InterpretedCallGuard:
    """Lock of a communicator for one call at a time, without the compiled executor.

    Attributes:
        owner_thread: the thread inside a call; 0 for none.
        outer_thread: the thread whose call makes calls that are part of it; 0 for none.
    """

    owner_thread = outer_thread = 0
    #: Another thread must not enter between the comparison and the assignment.
    _entrance = threading.Lock()

    def __enter__(self) -> InterpretedCallGuard:
        thread = threading.get_ident()
        with self._entrance:
            other = self.owner_thread or self.outer_thread
            if not self.owner_thread and other in (0, thread):
                self.owner_thread = thread
                return self
        reject_concurrent_call(other)

    def __exit__(self, *error: object) -> None:
        self.owner_thread = 0


def reject_concurrent_call(owner_thread: int) -> NoReturn:
    """Raise for a second call while a thread is in the first.

    Raises:
        ConcurrentCallError: names both call sites.
    """
    from hpccoll.guard.call_sites import call_site
    same = owner_thread == threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    raise ConcurrentCallError(call_site(), call_site(owner_thread),
                              "" if same else names.get(owner_thread, "unknown"))


def new_call_guard() -> Any:
    """Create the call lock of a communicator."""
    return _executor.CallGuard() if BUILT else InterpretedCallGuard()


if BUILT:
    _executor.set_refusal(reject_concurrent_call)
