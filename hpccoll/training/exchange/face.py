"""``Exchange``: what a training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeMismatch
from hpccoll.training.arrays import specs_of
from hpccoll.training.buckets import FIRST_BUCKET_BYTES, fitting_bucket_bytes
from hpccoll.training.exchange.brought import Parcel
from hpccoll.training.exchange.core import AT_ONCE, ExchangeCore
from hpccoll.training.exchange.fixed import FixedOrder
from hpccoll.training.exchange.ledger import StepReport
from hpccoll.training.exchange.negotiated import NegotiatedOrder
from hpccoll.training.exchange.settings import (
    FIXED,
    ExchangeOptions,
    ExchangeSettings,
    Recipe,
    scheme_of,
)
from hpccoll.training.given import communicator, listed, named, number
from hpccoll.training.sparse import check

#: Of an exchange that says nothing of them.
USUAL = ExchangeOptions()


class Handle:
    """Arrays under way, which :meth:`Exchange.submit` returns.

    Args:
        parcel: they.
        wait: waits for it.
        grouped: the results are a list.
    """

    def __init__(self, parcel: Parcel, wait: Callable[[Parcel], list[Any]], grouped: bool):
        self._parcel, self._wait, self._grouped = parcel, wait, grouped
        self._results: list[Any] | None = None

    def done(self) -> bool:
        """Tell whether the result is there; never waits."""
        return self._parcel.done

    def wait(self) -> Any:
        """The result, or the results of a group; the name may be submitted again.

        Raises:
            ExchangeError: a rank has left, or ranks disagree on the array.
        """
        if self._results is None:
            self._results = self._wait(self._parcel)
        return self._results if self._grouped else self._results[0]


class Exchange(ExchangeCore):
    """Reduces the arrays of all ranks, beside the computation that makes them.

    Making and closing one is collective; every rank makes the same calls of it for each step. A
    process set is a communicator: make an exchange on it.

    Args:
        comm: the ranks; an ``hpccoll.Comm``, or any intracommunicator.
        like: arrays, or :class:`~hpccoll.training.buckets.ArraySpec`, that every step brings.
        names: of the arrays; their numbers if omitted.
        op: ``"average"``, ``"sum"``, ``"min"``, ``"max"`` or ``"adasum"``.
        prescale, postscale: factors before and after.
        compress: ``"none"``, a scheme, or its text such as ``"topk:density=0.01"``.
        bucket_bytes, first_bucket_bytes: limits of buckets; 0 gives every array its own. By
            default a 32nd part of all arrays, but 1 MiB at least and 25 MiB at most.
        order: ``"fixed"``; ``"negotiated"``, where ranks bring arrays under any names in any
            order; ``"priority"``, where arrays of smaller index (or ``priority``) go first too.
        algorithm: of the allreduce, as in ``comm.using``.
        missing: what happens when a step ends without an array: ``"error"``, or ``"zeros"`` stand
            for it.
        uneven: ranks may run out of data; see :meth:`join`.
        progress: ``"thread"``, or ``"calls"`` alone move the exchange on; the environment's if
            omitted.
        autotune: path of a log: bucket bytes, partition, credit and algorithm are tuned during the
            first steps and written there, or read from there if an earlier run has done that.
        report_seconds, timeout_seconds: of a stall between two reports, and until the error;
            the environment's (HPCCOLL_REPORT, HPCCOLL_TIMEOUT) if omitted.
        recorder: gets the times of every array, such as ``hpccoll.training.trace.Recorder``.
        options: what few exchanges need to set; :class:`ExchangeOptions`.

    Raises:
        ArgumentError: an unusable setting, or what is no communicator, array or number.
        CommunicatorError: the communicator is null, or was freed.
        ExchangeMismatch: ranks differ in settings or arrays; names them.
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
        arrays = listed("like", like)
        specs = specs_of(arrays, named(names, len(arrays)))
        settings = ExchangeSettings(
            **vars(options),
            recipe=Recipe(op, number("prescale", prescale), number("postscale", postscale)),
            compress=scheme_of(compress),
            bucket_bytes=fitting_bucket_bytes(specs) if bucket_bytes is None else bucket_bytes,
            first_bucket_bytes=first_bucket_bytes, order=order, algorithm=algorithm,
            missing=missing, uneven=uneven)
        super().__init__(comm, arrays, specs, settings, progress, report_seconds, timeout_seconds,
                         recorder)
        if autotune is not None:
            self._tuner = self._tuning(comm, autotune)
        self._begin_driving()

    _paused = _pinned = False

    # -- a step ------------------------------------------------------------------------------
    def begin(self) -> None:
        """Say that the backward pass begins now: times of :meth:`profile` count from here."""
        self._ledger.begin()

    def ready(self, key: int | str, array: Any) -> None:
        """Bring an array; it travels as soon as its bucket is whole. Returns at once.

        Its memory belongs to the exchange until the result is there.

        Raises:
            ExchangeMismatch: unknown, not what was declared, or here already; on every rank.
            ExchangeError: another rank has left.
        """
        if self._paused:
            return
        self._check()
        self._place = "bringing arrays"
        try:
            self._order.bring(self._index(key), array)
        except Exception as error:
            self._warden.fail(error)
            raise

    def wait(self) -> list[Any]:
        """End the step: the results of all arrays, in the order of ``like``.

        An array that can be written is its own result.

        Raises:
            ExchangeError: an array was not brought, here or on another rank.
        """
        if self._paused:
            return []
        self._check()
        order = self._order
        first = not order.step
        with self._shared_errors():
            for index in order.missing():
                self._replace(index)
        pending = order.pending()

        def over() -> bool:
            while pending and order.is_done(pending[-1]):
                pending.pop()
            return not pending

        ending = list(pending)  # others were brought for the next step already
        self._wait("waiting for the end of the step", over)
        results = list(order.results)
        for index in ending:
            results[index] = order.take(index)
        if first and isinstance(order, FixedOrder) and order.settings.rebuild and not (
                order.settings.uneven or order.settings.missing != "error"):
            self._run(self._turns.reorder(order, self._pinned or bool(order.begun())))
        self._end_step()
        return results

    def wait_for(self, key: int | str) -> Any:
        """The result of one array, which may be brought for the next step from then on.

        Raises:
            ExchangeError: it was not brought in this step.
        """
        self._check()
        order = self._order
        with self._shared_errors():
            index = self._index(key)
            if not order.has(index):
                self._replace(index)
        self._wait(f"waiting for array '{self.specs[index].name}'", lambda: order.is_done(index))
        step, result = order.step, order.take(index)
        if order.step > step:
            self._ledger.end()
        return result

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        """Bring all arrays at once and end the step: the fastest where nothing is overlapped.

        Raises:
            ExchangeError: as :meth:`ready` and :meth:`wait`.
        """
        if self._paused:
            return list(arrays)
        self._check()
        order = self._order
        with self._shared_errors():
            arrays = listed("arrays", arrays)
            if len(arrays) != len(self.specs):
                raise ExchangeMismatch(f"got {len(arrays)} arrays, {len(self.specs)} are declared")
        if (isinstance(order, NegotiatedOrder) or order.settings.compress is not None
                or order.recipe.op == "adasum"):
            for index, array in enumerate(arrays):
                self.ready(index, array)
            return self.wait()
        with self._shared_errors():
            self._between("reduce()")
            task, results = self._turns.runs(order, arrays)
        self._run(task, AT_ONCE)
        self._end_step()
        return results

    def submit(self, name: str, array: Any, *, op: str | None = None, prescale: float | None = None,
               postscale: float | None = None, priority: int = 0) -> Handle:
        """Bring an array under any name, in negotiated order; a list of arrays travels as a group.

        Args:
            op, prescale, postscale: the exchange's if omitted.
            priority: smaller ones first, in order of priority.

        Raises:
            ArgumentError: the order is fixed.
            ExchangeMismatch: the name is under way already; on every rank.
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
        with self._shared_errors():
            specs = specs_of(arrays, [name] if not grouped else
                             [f"{name}.{index}" for index in range(len(arrays))])
            parcel = order.submit(name, specs, arrays, recipe, priority)

        def finish(parcel: Parcel) -> list[Any]:
            self._check()
            self._wait(f"waiting for array '{name}'", lambda: parcel.done)
            return order.parcels.pop(name).results()

        return Handle(parcel, finish, grouped)

    def views(self) -> list[Any]:
        """Arrays of the declared shapes that lie in the fusion buffers: nothing is copied for them.

        Write gradients into them and bring them; they are their own results. The buckets stay as
        they are from then on. All ranks call it alike, before the first step.

        Raises:
            ArgumentError: the order is not fixed.
        """
        if not isinstance(self._order, FixedOrder):
            raise ArgumentError("order", "is not 'fixed', so arrays have no fixed memory",
                                "create the exchange with order='fixed'")
        self._pinned = True
        return list(self._order.pool.views)

    @contextmanager
    def paused(self) -> Iterator[Exchange]:
        """Accumulate without communication: ``ready``, ``wait`` and ``reduce`` do nothing inside.

        Let gradients add up in the same arrays, and bring them after it.
        """
        before, self._paused = self._paused, True
        try:
            yield self
        finally:
            self._paused = before

    # -- between steps -----------------------------------------------------------------------
    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> list[Any]:
        """Give all ranks the root's arrays, such as parameters at the start; collective.

        Returns:
            The arrays, in place where they can be written.

        Raises:
            ExchangeMismatch: shapes or types differ between ranks.
        """
        self._check()
        with self._shared_errors():
            self._between("broadcast()")
            task, results = self._turns.broadcast(listed("arrays", arrays), root)
        self._run(task, "in broadcast()")
        return results

    def reduce_sparse(self, indices: Any, values: Any) -> tuple[Any, Any]:
        """Add up (or average) rows of all ranks by their indices; collective.

        Args:
            indices: which row each of the values is; a row may come more than once.
            values: rows, of one shape and type on all ranks.

        Returns:
            The indices that any rank brought, in order, and a row for each; the same on all ranks.

        Raises:
            ArgumentError: indices that do not fit, or an operator other than sum and average.
        """
        self._check()
        if self.settings.recipe.op not in ("sum", "average"):
            raise ArgumentError("op", f"the {self.settings.recipe.op} of sparse arrays is not "
                                      "defined", "choose op='average' or 'sum'")
        rows: list[Any] = []
        with self._shared_errors():
            self._between("reduce_sparse()")
            task = self._turns.sparse(*check(indices, values), rows)
        self._run(task, "in reduce_sparse()")
        return rows[0], rows[1]

    def join(self) -> int:
        """Run out of data: take part with zeros until all ranks have; collective.

        Averages are over all ranks, those without data included.

        Returns:
            The rank that ran out of data last.

        Raises:
            ArgumentError: the order is fixed, and ``uneven`` was not set.
        """
        self._check()
        order = self._order
        with self._shared_errors():
            self._between("join()")
        if isinstance(order, NegotiatedOrder):
            order.leave()
            self._wait("joined, without data", lambda: order.everybody)
            order.come_back()
            return order.last
        if not order.settings.uneven:
            raise ArgumentError("uneven", "requires uneven=True",
                                "create the exchange with uneven=True")
        self._run(self._turns.shadow(order), "joined, without data")
        return self._gate.last

    # -- what it says ------------------------------------------------------------------------
    def report(self) -> StepReport:
        """Times and bytes of the last step on this rank; ``print`` shows a table."""
        return self._ledger.last

    def profile(self) -> dict[str, Any]:
        """Sizes of arrays and when each was ready in the last step, for the simulator.

        Returns:
            ``arrays`` (a dict of name, shape, dtype and itemsize each), ``ready_seconds`` (each
            since the step began, see :meth:`begin`) and ``backward_seconds``.
        """
        return self._ledger.profile(self.specs)

    def timeline(self) -> Any:
        """Times of all ranks, gathered by the recorder; collective.

        Raises:
            ArgumentError: the exchange was made without a recorder.
        """
        recorder = self._ledger.recorder
        if recorder is None:
            raise ArgumentError("recorder", "nothing was recorded", "pass one to Exchange")
        return recorder.gather(self._wiring.gates)

    def state(self) -> dict[str, dict[str, Any]]:
        """What compression remembers, by array; collective. Keep it with a checkpoint."""
        self._check()
        return self._order.state()

    def load(self, state: dict[str, dict[str, Any]]) -> None:
        """Take over what :meth:`state` gave; buckets may have changed since."""
        self._order.load(state)
