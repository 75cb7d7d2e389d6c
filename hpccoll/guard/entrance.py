"""One call at a time on a communicator, whichever thread makes it.

Messages of two calls at once would be taken for each other's. So a call enters, and leaves at its
end; a second one is refused before anything is sent, and told where the first one is. The compiled
executor enters in machine code, by one comparison: nothing else can run there in between, because
whoever runs Python's code holds the interpreter.

Not waited for, because MPI has no order of calls from two threads either: ranks could disagree.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from hpccoll.errors import ConcurrentCallError
from hpccoll.guard.sites import call_site
from hpccoll.runtime.execution.compiled import BUILT

if BUILT:
    from hpccoll.runtime.execution import _tape


class InterpretedEntrance:
    """Lets one call on a communicator go at a time, where there is no compiled executor.

    Attributes:
        holder: the thread that is in a call, 0 for none.
    """

    holder = 0

    def __enter__(self) -> InterpretedEntrance:
        if self.holder:
            refuse(self.holder)
        self.holder = threading.get_ident()
        return self

    def __exit__(self, *error: object) -> None:
        self.holder = 0


def refuse(holder: int) -> NoReturn:
    """Raise for a second call while a thread is in the first.

    Raises:
        ConcurrentCallError: names both call sites.
    """
    same = holder == threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    raise ConcurrentCallError(call_site(), call_site(holder),
                              "" if same else names.get(holder, "unknown"))


def new_entrance() -> Any:
    """The entrance of a communicator."""
    return _tape.Entrance() if BUILT else InterpretedEntrance()


if BUILT:
    _tape.set_refusal(refuse)
