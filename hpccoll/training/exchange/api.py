"""``Exchange``: the interface for training loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeMismatch
from hpccoll.training.arguments import array_names, as_list, as_number, communicator
from hpccoll.training.arrays import specs_of
from hpccoll.training.buckets import FIRST_BUCKET_BYTES, fitting_bucket_bytes
from hpccoll.training.exchange.core import AT_ONCE, ExchangeCore
from hpccoll.training.exchange.fixed import FixedOrder
from hpccoll.training.exchange.negotiated import NegotiatedOrder
from hpccoll.training.exchange.settings import (
    FIXED,
    ExchangeOptions,
    ExchangeSettings,
    Recipe,
    scheme_of,
)
from hpccoll.training.exchange.tensor_entry import Submission
from hpccoll.training.report import TraceReport, report
from hpccoll.training.sparse import check

#: Default options.
USUAL = ExchangeOptions()


class Handle:
    """Handle of pending arrays, which :meth:`Exchange.submit` returns.

    Args:
        submission: the arrays.
        wait: function that waits for them.
        grouped: True if the results are a list.
    """

    def __init__(self, submission: Submission, wait: Callable[[Submission], list[Any]],
                 grouped: bool):
        self._submission, self._wait, self._is_group = submission, wait, grouped
        self._results: list[Any] | None = None

    def done(self) -> bool:
        """Return True if the result is complete; never blocks."""
        return self._submission.done

    def wait(self) -> Any:
        """Wait and return the result or results; the name may then be submitted again.

        Raises:
            ExchangeError: a rank has left, or ranks have different arrays of this name.
        """
        if self._results is None:
            self._results = self._wait(self._submission)
        return self._results if self._is_group else self._results[0]


class Exchange(ExchangeCore):
    """Reduces arrays over all ranks, overlapped with their computation.

    Creating and closing it is collective; every rank makes the same calls in each step. For a
    process set, create an exchange on its communicator.

    Args:
        comm: the ranks; an ``hpccoll.Comm``, or any intracommunicator.
        like: the arrays of each step, or their :class:`~hpccoll.training.buckets.ArraySpec`.
        names: names of the arrays; their indices if omitted.
        op: ``"average"``, ``"sum"``, ``"min"``, ``"max"`` or ``"adasum"``.
        prescale, postscale: factors before and after the reduction.
        compress: ``"none"``, a scheme, or its text such as ``"topk:density=0.01"``.
        bucket_bytes, first_bucket_bytes: limits of buckets; 0 gives each array its own bucket. By
            default 1/32 of all arrays, at least 1 MiB and at most 25 MiB.
        order: ``"fixed"``; ``"negotiated"``: ranks submit arrays under any names in any order;
            ``"priority"``: negotiated, and arrays of smaller index (or ``priority``) are sent
            first.
        algorithm: algorithm of the allreduce, as in ``comm.using``.
        missing: handling of arrays that are missing at the end of a step: ``"error"`` raises,
            ``"zeros"`` substitutes zeros.
        uneven: True if ranks may run out of data; see :meth:`join`.
        progress: ``"thread"``, or ``"calls"`` for progress only in calls; by default from the
            environment.
        autotune: path of a log. The first steps tune bucket bytes, partition, credit and algorithm
            and write the log; a later run reads the settings from it.
        report_seconds, timeout_seconds: seconds of a stall between two reports, and until the
            error; by default from the environment (HPCCOLL_REPORT, HPCCOLL_TIMEOUT).
        recorder: records the times of all arrays, such as ``hpccoll.training.trace.Recorder``.
        options: rarely used settings; :class:`ExchangeOptions`.

    Raises:
        ArgumentError: an invalid setting, communicator, array or number.
        CommunicatorError: the communicator is null or freed.
        ExchangeMismatch: ranks differ in settings or arrays; the message names them.
    """

    def __init__(self, comm: Any, like: Iterable[Any] = (), *, names: Sequence[str] | None = None,
                 op: str = "average", prescale: float = 1.0, postscale: float = 1.0,
                 compress: Any = "none", bucket_bytes: int | None = None,
                 first_bucket_bytes: int = FIRST_BUCKET_BYTES, order: str = FIXED,
                 algorithm: str = "auto", missing: str = "error", uneven: bool = False,
                 progress: str | None = None, autotune: str | None = None,
                 report_seconds: float | None = None, timeout_seconds: float | None = None,
                 recorder: Any = None, options: ExchangeOptions = USUAL):
        communicator("comm", comm)
        if not isinstance(options, ExchangeOptions):
            raise ArgumentTypeError("options", f"expected ExchangeOptions, got {options!r}")
        arrays = as_list("like", like)
        specs = specs_of(arrays, array_names(names, len(arrays)))
        settings = ExchangeSettings(
            **vars(options),
            recipe=Recipe(op, as_number("prescale", prescale), as_number("postscale", postscale)),
            compress=scheme_of(compress),
            bucket_bytes=fitting_bucket_bytes(specs) if bucket_bytes is None else bucket_bytes,
            first_bucket_bytes=first_bucket_bytes, order=order, algorithm=algorithm,
            missing=missing, uneven=uneven)
        super().__init__(comm, arrays, specs, settings, progress, report_seconds, timeout_seconds,
                         recorder)
        if autotune is not None:
            self._tuner = self._create_tuner(comm, autotune)
        self._start_engine()

    _paused = _pinned = False

    # -- a step ------------------------------------------------------------------------------
    def begin(self) -> None:
        """Mark the start of the backward pass, from which :meth:`profile` counts times."""
        self._recorder.begin_step(time.perf_counter())

    def ready(self, key: int | str, array: Any) -> None:
        """Submit an array without blocking; a complete bucket is sent.

        The caller must not access its memory until the result is complete.

        Raises:
            ExchangeMismatch: the array is unknown, not as declared, or already submitted; on every
                rank.
            ExchangeError: another rank has left.
        """
        if self._paused:
            return
        self._check()
        self._activity = "bringing arrays"
        try:
            self._order.mark_ready(self._index(key), array)
        except Exception as error:
            self._failures.fail(error)
            raise

    def wait(self) -> list[Any]:
        """End the step; return the results of all arrays in the order of ``like``.

        A writable array is its own result.

        Raises:
            ExchangeError: an array is missing on this or another rank.
        """
        if self._paused:
            return []
        self._check()
        order = self._order
        first = not order.step
        with self._propagate_errors():
            for index in order.missing_arrays():
                self._replace(index)
        pending = order.pending_arrays()

        def is_over() -> bool:
            while pending and order.is_done(pending[-1]):
                pending.pop()
            return not pending

        ending = list(pending)  # other arrays are already those of the next step
        self._wait("waiting for the end of the step", is_over)
        results = list(order.results)
        for index in ending:
            results[index] = order.take_result(index)
        if first and isinstance(order, FixedOrder) and order.settings.rebuild and not (
                order.settings.uneven or order.settings.missing != "error"):
            self._run(self._steps.reorder(order, self._pinned or bool(order.submitted_names())))
        self._end_step()
        return results

    def wait_for(self, key: int | str) -> Any:
        """Wait for one array and return its result; it may be submitted for the next step.

        Raises:
            ExchangeError: it was not submitted in this step.
        """
        self._check()
        order = self._order
        with self._propagate_errors():
            index = self._index(key)
            if not order.is_submitted(index):
                self._replace(index)
        self._wait(f"waiting for array '{self.specs[index].name}'", lambda: order.is_done(index))
        step, result = order.step, order.take_result(index)
        if order.step > step:
            self._recorder.end_step(time.perf_counter())
        return result

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        """Submit all arrays in one call and end the step; the fastest way without overlap.

        Raises:
            ExchangeError: as :meth:`ready` and :meth:`wait`.
        """
        if self._paused:
            return list(arrays)
        self._check()
        order = self._order
        with self._propagate_errors():
            arrays = as_list("arrays", arrays)
            if len(arrays) != len(self.specs):
                raise ExchangeMismatch(f"got {len(arrays)} arrays, {len(self.specs)} are declared")
        if (isinstance(order, NegotiatedOrder) or order.settings.compress is not None
                or order.recipe.op == "adasum"):
            for index, array in enumerate(arrays):
                self.ready(index, array)
            return self.wait()
        with self._propagate_errors():
            self._check_idle("reduce()")
            task, results = self._steps.reduce_list(order, arrays)
        self._run(task, AT_ONCE)
        self._end_step()
        return results

    def submit(self, name: str, array: Any, *, op: str | None = None, prescale: float | None = None,
               postscale: float | None = None, priority: int = 0) -> Handle:
        """Submit an array under any name, in negotiated order; a list is reduced as a group.

        Args:
            op, prescale, postscale: by default those of the exchange.
            priority: smaller values are sent first, in priority order.

        Raises:
            ArgumentError: the order is fixed.
            ExchangeMismatch: the name is already pending; on every rank.
        """
        self._check()
        order = self._order
        if not isinstance(order, NegotiatedOrder):
            raise ArgumentError("order", "is 'fixed', which rejects undeclared names",
                                "create the exchange with order='negotiated'")
        usual = self.settings.recipe
        recipe = Recipe(op or usual.op, usual.prescale if prescale is None else prescale,
                        usual.postscale if postscale is None else postscale)
        grouped = isinstance(array, (list, tuple))
        arrays = list(array) if grouped else [array]
        with self._propagate_errors():
            specs = specs_of(arrays, [name] if not grouped else
                             [f"{name}.{index}" for index in range(len(arrays))])
            parcel = order.submit(name, specs, arrays, recipe, priority)

        def finish(parcel: Submission) -> list[Any]:
            self._check()
            self._wait(f"waiting for array '{name}'", lambda: parcel.done)
            return order.submissions.pop(name).results()

        return Handle(parcel, finish, grouped)

    def views(self) -> list[Any]:
        """Return arrays of the declared shapes in the fusion buffers, which avoid copies.

        Write gradients into them and submit them; they are their own results. Buckets do not
        change afterwards. All ranks must call this before the first step.

        Raises:
            ArgumentError: the order is not fixed.
        """
        if not isinstance(self._order, FixedOrder):
            raise ArgumentError("order", "is not 'fixed', so arrays have no fixed memory",
                                "create the exchange with order='fixed'")
        self._pinned = True
        return list(self._order.fusion_buffer.views)

    @contextmanager
    def paused(self) -> Iterator[Exchange]:
        """Return a context for gradient accumulation without communication.

        Inside, ``ready``, ``wait`` and ``reduce`` do nothing. Accumulate gradients in the same
        arrays, and submit them after it.
        """
        before, self._paused = self._paused, True
        try:
            yield self
        finally:
            self._paused = before

    # -- between steps -----------------------------------------------------------------------
    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> list[Any]:
        """Broadcast the root's arrays, such as initial parameters; collective.

        Returns:
            The arrays, in place if they are writable.

        Raises:
            ExchangeMismatch: shapes or dtypes differ between ranks.
        """
        self._check()
        with self._propagate_errors():
            self._check_idle("broadcast()")
            task, results = self._steps.broadcast(as_list("arrays", arrays), root)
        self._run(task, "in broadcast()")
        return results

    def reduce_sparse(self, indices: Any, values: Any) -> tuple[Any, Any]:
        """Sum or average rows of all ranks by their indices; collective.

        Args:
            indices: index of each row; indices may repeat.
            values: rows, of one shape and dtype on all ranks.

        Returns:
            The sorted indices of all ranks, and one row for each; the same on all ranks.

        Raises:
            ArgumentError: invalid indices, or an operator other than sum and average.
        """
        self._check()
        if self.settings.recipe.op not in ("sum", "average"):
            raise ArgumentError("op", f"the {self.settings.recipe.op} of sparse arrays is not "
                                      "defined", "choose op='average' or 'sum'")
        rows: list[Any] = []
        with self._propagate_errors():
            self._check_idle("reduce_sparse()")
            task = self._steps.reduce_sparse(*check(indices, values), rows)
        self._run(task, "in reduce_sparse()")
        return rows[0], rows[1]

    def join(self) -> int:
        """Contribute zeros until all ranks have run out of data; collective.

        Averages are over all ranks, including those without data.

        Returns:
            The rank that ran out of data last.

        Raises:
            ArgumentError: the order is fixed, and ``uneven`` was not set.
        """
        self._check()
        order = self._order
        with self._propagate_errors():
            self._check_idle("join()")
        if isinstance(order, NegotiatedOrder):
            order.announce_join()
            self._wait("joined, without data", lambda: order.all_joined)
            order.reset_join()
            return order.last
        if not order.settings.uneven:
            raise ArgumentError("uneven", "requires uneven=True",
                                "create the exchange with uneven=True")
        self._run(self._steps.contribute_zeros(order), "joined, without data")
        return self._barrier.last

    # -- reports -----------------------------------------------------------------------------
    def report(self) -> TraceReport:
        """Return times and bytes of the last step on this rank; ``print`` shows a table.

        Raises:
            ArgumentError: no step has ended yet.
        """
        return report(self._recorder.last_step(), 0)

    def profile(self) -> dict[str, Any]:
        """Return sizes and ready times of arrays in the last step, for the simulator.

        Returns:
            ``arrays`` (each a dict of name, shape, dtype and itemsize), ``ready_seconds`` (since
            the start of the step, see :meth:`broadcast_arrays`) and ``backward_seconds``.
        """
        return self._recorder.profile(self.specs)

    def timeline(self) -> Any:
        """Gather the timeline of all ranks from the recorder; collective.

        Raises:
            ArgumentError: the exchange has no recorder.
        """
        if self._recorded is None:
            raise ArgumentError("recorder", "nothing was recorded", "pass one to Exchange")
        return self._recorded.gather(self._comms.gates)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the compression state by array, for a checkpoint; collective."""
        self._check()
        return self._order.state()

    def load(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a state that :meth:`state` returned; buckets may differ."""
        self._order.load(state)
