"""Operations of the compiled executor: compiled plans behind requests.

    Request, Prequest --handle--> Token <--lent to-- CompiledOperation --drives--> Run of a compiled
    plan

A request starts and completes without Python or MPI if its messages arrive soon. ``_requests.c``
lends it a generalized MPI request at its start, and takes that back when its own wait or test
completes it. If the thread or a wait for another request completes it, the generalized request is
completed too, for waits inside the MPI library.

Importing this module needs the compiled executor.
"""

from __future__ import annotations

import time
from typing import Any

from mpi4py import MPI

from hpccoll.calls.call import Call
from hpccoll.errors import cause_of
from hpccoll.errors.waits import raisable
from hpccoll.runtime.context import Context
from hpccoll.runtime.execution import _executor
from hpccoll.runtime.execution.compiled import addresses_of
from hpccoll.runtime.execution.slow_path import SlowPath
from hpccoll.runtime.progress.engine import PROGRESS, PendingOperation
from hpccoll.runtime.progress.operations import NULL, cell
from hpccoll.runtime.progress.waiting import WaitTimer

#: Seconds of the shortest wait for a compiled plan before all other operations are progressed.
SLICE = 20e-6
#: Seconds without a message after which one may be outside its cell.
LATE = 1e-3


class GeneralizedRequest(_executor.Token):
    """Generalized request that is lent to one operation at a time."""

    def __init__(self) -> None:
        if not _tokens_at_end:
            _tokens_at_end.append(MPI.Comm.Create_keyval(delete_fn=_free_tokens))
            MPI.COMM_SELF.Set_attr(_tokens_at_end[0], True)
        self.request = MPI.Grequest.Start(self.query)
        self.handle = cell(self.request).value

    def query(self, status: MPI.Status) -> None:
        """Raise the error of the operation; MPI may call this several times at completion."""
        if self.owner is not None:
            self.owner.query()


class CompiledOperation(_executor.CompiledRun, PendingOperation):
    """Compiled plan behind a request: prepared once and started many times.

    If the caller waits for or tests this request itself, it starts and completes in machine code.

    Args:
        context: the context of its communicator.
        compiled plan: the compiled plan.
        call: the call whose memory it uses and keeps alive; ``None`` if every request has its own.
        queue: the queue of operations that share its channels; ``None`` if it has its own channels.
        threaded: True if the thread may progress it.
    """

    def __init__(self, context: Context, compiled_plan: Any, call: Call | None, queue: Any,
                 threaded: bool):
        PendingOperation.__init__(self, context, None, threaded)
        memory = (0, 0) if call is None else addresses_of(call)
        self.prepare(compiled_plan.begin(*memory, call), queue, threaded)
        self.waits = compiled_plan.owners[0]
        #: Position of its current wait, and the start time of that wait.
        self.at, self.since = -1, 0.0
        context.compiled_operations.add(self)

    start = _executor.CompiledRun.begin

    def finish(self) -> bool:
        """Return False: the machine code has already tried."""
        return False

    def free(self) -> None:
        """Release its slow path; its memory is freed with its last user."""
        if self.slow_path is not None:
            # A reference cycle would keep the caller's arrays until the next garbage collection.
            del self.slow_path.watch
            self.slow_path = None

    @property
    def pending_run(self) -> SlowPath:
        """Slow path of its run."""
        slow_path: SlowPath | None = self.slow_path
        if slow_path is None:
            self.slow_path = slow_path = SlowPath(self.waits, self.run)
        return slow_path

    @property
    def moves(self) -> int:
        """Index of the current instruction."""
        return self.run.at

    def _step(self) -> bool:
        before = self.run.at
        found = self.attempt(0)
        while found != _executor.DONE and self._fetch(found):
            found = self.attempt(0)
        moved = found == _executor.DONE or self.run.at != before
        if found == _executor.DONE:
            self._complete()
        else:
            self.check_queue(self.queue)
        return bool(moved)

    def _fetch(self, found: int) -> bool:
        """Use a message outside its cell like the interpreter; return True if there was one."""
        if self.queue is not None and self.queue.first is not self:
            return False
        if found != _executor.ELSEWHERE:
            # Messages outside their cells need regular polls, or their senders wait forever.
            now = time.monotonic()
            if self.run.at != self.at:
                self.at, self.since = self.run.at, now
            if now - self.since < LATE:
                return False
        if not self.claim():
            return False
        try:
            # Another thread may have completed or removed it before it was claimed.
            fetched = (not self.over and (self.queue is None or self.queue.first is self)
                       and self.pending_run.fetch())
        except BaseException:
            self.pending_run.give_up()  # no thread continues it before it is removed
            raise
        self.give_back()
        return fetched

    def linger(self, watch: WaitTimer) -> None:
        """Wait for missing messages; see :meth:`PendingOperation.linger`."""
        now = time.monotonic()
        if self.attempt(-1) == _executor.WAITING and time.monotonic() - now < SLICE:
            watch.pause()  # another thread runs it or one before it in its queue
        else:
            watch.look()

    def _complete(self, error: BaseException | None = None) -> None:
        # A wait in machine code may have completed and restarted it meanwhile.
        token = self.conclude(error is not None)
        if token is not None:
            if error is not None:
                self.context.abandoned.append(self.run)
                error = self._diagnose(error)
            self.error = error
            token.request.Complete()

    def on_alarm(self) -> None:
        """Raise the failure of another rank, before the start.

        Raises:
            BrokenCommunicatorError: another rank has failed.
        """
        try:
            self.context.guard.on_alarm()
        except BaseException as error:
            raise self._diagnose(error) from cause_of(error)

    def _diagnose(self, error: BaseException) -> BaseException:
        """Report an error to the other ranks; return the exception for the caller."""
        of = self.waits
        return self.context.fail(error, of.plan.schedule.title, of.plan, of.tag)

    def query(self) -> None:
        """Raise the error of the operation at completion."""
        if self.error is not None and not self.quiet:
            raise raisable(self.error)


def _free_tokens(*_: Any) -> None:
    """Free the generalized requests that are not lent."""
    while not PROGRESS.parent and (token := _executor.spare_token()) is not None:
        token.request.Complete()
        token.request.Wait()


_executor.set_progress(PROGRESS, GeneralizedRequest,
                       MPI._addressof(MPI.REQUEST_NULL) - id(MPI.REQUEST_NULL),
                       MPI._sizeof(MPI.Request), NULL)
#: Key of the attribute whose callback frees them in MPI_Finalize.
_tokens_at_end: list[int] = []


def at_exit() -> None:
    """Stop the native thread, which uses memory of Python, and free the requests."""
    _executor.stop_background()
    _free_tokens()
