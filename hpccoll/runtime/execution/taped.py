"""Operations of the compiled executor: tapes that requests stand for.

    Request, Prequest --handle--> Token <--lent to-- TapedOperation --drives--> Run of a tape

A request begins and ends here without Python or MPI hearing of it, as long as its messages come
soon: ``_requests.c`` lends it a generalized request of MPI when it begins, and takes that back when
somebody who waits for it, or tests it, finds it at its end. Only where somebody else moves it to
its end - the thread, a wait for another request - is that generalized request completed, for those
who wait inside the MPI library.

Importing this module needs the compiled executor.
"""

from __future__ import annotations

import time
from typing import Any

from mpi4py import MPI

from hpccoll.calls.call import Call
from hpccoll.errors import cause_of
from hpccoll.runtime.context import Context
from hpccoll.runtime.execution import _tape
from hpccoll.runtime.execution.attendance import Attendant
from hpccoll.runtime.execution.compiled import addresses_of
from hpccoll.runtime.progress.engine import PROGRESS, Underway
from hpccoll.runtime.progress.operations import NULL, cell
from hpccoll.runtime.progress.waiting import Watch

#: Microseconds that a tape is waited for before everything else is moved on.
SLICE = 100
#: Seconds without a message after which one may have been put elsewhere.
LATE = 1e-3


class Token(_tape.Token):
    """A generalized request, lent to one operation after the other."""

    def __init__(self) -> None:
        if not _tokens_at_end:
            _tokens_at_end.append(MPI.Comm.Create_keyval(delete_fn=_free_tokens))
            MPI.COMM_SELF.Set_attr(_tokens_at_end[0], True)
        self.request = MPI.Grequest.Start(self.observed)
        self.handle = cell(self.request).value

    def observed(self, status: MPI.Status) -> None:
        """Called by MPI, possibly more than once, where completion is observed."""
        if self.owner is not None:
            self.owner.observed()


class TapedOperation(_tape.Taped, Underway):
    """A tape behind a request: prepared once, and begun again and again.

    A request that is waited for or tested itself begins and ends it in machine code.

    Args:
        context: of the communicator it runs on.
        tape: what runs.
        call: on whose memory it runs, and which it keeps alive; ``None`` where every request
            brings its own.
        lane: where it waits for its turn; ``None`` where it has channels of its own.
        threaded: the thread may drive it.
    """

    def __init__(self, context: Context, tape: Any, call: Call | None, lane: Any,
                 threaded: bool):
        Underway.__init__(self, context, None, threaded)
        memory = (0, 0) if call is None else addresses_of(call)
        self.prepare(tape.begin(*memory, call), lane, threaded)
        self.attendance = tape.owners[0]
        #: Where it waits, and since when.
        self.at, self.since = -1, 0.0
        context.taped.add(self)

    start = _tape.Taped.begin

    def finish(self) -> bool:
        """Nothing: that was tried in machine code."""
        return False

    def free(self) -> None:
        """Nothing: its memory goes with the last that uses it."""

    @property
    def awaited(self) -> Attendant:
        """What looks after its run."""
        attendant: Attendant | None = self.attendant
        if attendant is None:
            self.attendant = attendant = Attendant(self.attendance, self.run)
        return attendant

    @property
    def moves(self) -> int:
        """The instruction it has come to."""
        return self.run.at

    def _step(self) -> bool:
        before = self.run.at
        found = self.attempt(0)
        while found != _tape.DONE and self._fetched(found):
            found = self.attempt(0)
        moved = found == _tape.DONE or self.run.at != before
        if found == _tape.DONE:
            self._complete()
        else:
            self.check_lane(self.lane)
        return bool(moved)

    def _fetched(self, found: int) -> bool:
        """Use a message that is not in its cell, as the interpreter would, if there is one."""
        if self.lane is not None and self.lane.first is not self:
            return False
        if found != _tape.ELSEWHERE:
            # What senders put elsewhere must be looked for now and then, or they wait for ever.
            now = time.monotonic()
            if self.run.at != self.at:
                self.at, self.since = self.run.at, now
            if now - self.since < LATE:
                return False
        if not self.claim():
            return False
        try:
            # Another thread may have ended it, or taken it out of service, before it was claimed.
            fetched = (not self.over and (self.lane is None or self.lane.first is self)
                       and self.awaited.fetched())
        except BaseException:
            self.awaited.give_up()  # and nobody goes on until it is taken out of service
            raise
        self.give_back()
        return fetched

    def linger(self, watch: Watch) -> None:
        """Wait a little for what is missing; see :meth:`Underway.linger`."""
        self.attempt(SLICE)
        time.sleep(0)  # a thread that makes it busy may be waiting for the interpreter
        watch.look()

    def _complete(self, error: BaseException | None = None) -> None:
        # Whoever waits for it in machine code may have been faster, and begun it anew.
        token = self.conclude(error is not None)
        if token is not None:
            if error is not None:
                self.context.abandoned.append(self.run)
                error = self._judged(error)
            self.error = error
            token.request.Complete()

    def heard(self) -> None:
        """Called before it begins where a rank has given up.

        Raises:
            BrokenCommunicatorError: it will not come to this collective.
        """
        try:
            if self.context.guard is not None:
                self.context.guard.heard()
        except BaseException as error:
            raise self._judged(error) from cause_of(error)

    def _judged(self, error: BaseException) -> BaseException:
        """Tell the others of an error; what the caller is to get."""
        of = self.attendance
        return self.context.fail(error, of.plan.schedule.title, of.plan, of.tag)

    def observed(self) -> None:
        """Called where completion is observed: raises what went wrong."""
        if self.error is not None and not self.quiet:
            raise self.error


def _free_tokens(*_: Any) -> None:
    """Free the requests of MPI that are lent to nobody."""
    while _tokens and not PROGRESS.parent:
        request = _tokens.pop().request
        request.Complete()
        request.Wait()


_tokens = _tape.set_progress(PROGRESS, Token,
                             MPI._addressof(MPI.REQUEST_NULL) - id(MPI.REQUEST_NULL),
                             MPI._sizeof(MPI.Request), NULL)
#: The key of the attribute that frees them when MPI ends.
_tokens_at_end: list[int] = []


def at_exit() -> None:
    """End the native thread, which uses what Python has allocated; free the requests."""
    _tape.stop_background()
    _free_tokens()
