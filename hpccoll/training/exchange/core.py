"""Base of an exchange: its parts, waiting, error propagation and closing."""

from __future__ import annotations

import atexit
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

from hpccoll import config
from hpccoll.errors import (
    ArgumentError,
    ArgumentTypeError,
    ExchangeError,
    ExchangeMismatch,
    RankFailed,
)
from hpccoll.runtime.progress.task_queue import nothing
from hpccoll.training.arguments import as_number
from hpccoll.training.arrays import as_array, is_on_device
from hpccoll.training.autotune import Autotune, knobs_from_log
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.engine import Engine
from hpccoll.training.exchange.collective_step import CollectiveSteps, retune
from hpccoll.training.exchange.communicators import ExchangeCommunicators
from hpccoll.training.exchange.failure_propagation import FailurePropagation
from hpccoll.training.exchange.fixed import FixedOrder
from hpccoll.training.exchange.negotiated import NegotiatedOrder
from hpccoll.training.exchange.settings import FIXED, ExchangeSettings
from hpccoll.training.exchange.transfer import StepBarrier
from hpccoll.training.trace import Recorder, recorder_from_environment, save_all

#: Activity of a rank that has submitted all arrays in one call.
AT_ONCE = "in reduce()"


class ExchangeCore:
    """Parts of an exchange and waiting for them; arguments as in ``Exchange``."""

    def __init__(self, comm: Any, arrays: Sequence[Any], specs: tuple[ArraySpec, ...],
                 settings: ExchangeSettings, progress: str | None,
                 report_seconds: float | None, timeout_seconds: float | None, recorder: Any):
        self.specs = specs
        self._indices = {spec.name: index for index, spec in enumerate(self.specs)}
        if len(self._indices) < len(self.specs):
            raise ArgumentError("names", "two arrays have the same name", "use distinct names")
        for spec in self.specs:
            settings.recipe.check(spec.name, spec.dtype)
        device = [not isinstance(array, ArraySpec) and is_on_device(as_array(array))
                  for array in arrays]
        environment = config.load()
        how = config.check_progress(progress or environment.progress)
        self._use_thread = how == config.THREAD
        if not (recorder is None or hasattr(recorder, "begin_step")):
            raise ArgumentTypeError("recorder", f"expected a recorder, got {recorder!r}",
                                    "pass hpccoll.training.trace.Recorder(rank)")
        report = _seconds("report_seconds", report_seconds, environment.report)
        timeout = _seconds("timeout_seconds", timeout_seconds,
                           getattr(comm, "timeout", environment.timeout))
        self._comms = ExchangeCommunicators(comm, settings, self.specs)
        check = partial(getattr(self._comms.data_comms[0], "check_ranks", lambda peers: None),
                        range(self._comms.size))
        self._failures = FailurePropagation(self._comms.control, self._answer_query, report,
                                            timeout, check)
        #: The recorder of ``HPCCOLL_TRACE``, written on close.
        self._env_recorder = (recorder_from_environment(comm.Get_rank())
                              if recorder is None else None)
        self._recorded = recorder or self._env_recorder
        self._recorder = self._recorded or Recorder(comm.Get_rank(), traced=False)
        self._recorder.begin_step(time.perf_counter())
        self._barrier = StepBarrier(self._comms.gates)
        self._activity = "between steps"
        self._closed = False
        self._tuner: Autotune | None = None
        # The last queue is for votes.
        self._engine = Engine(len(self._comms.data_comms) + 1, self._poll, self._failures.fail)
        self._order: FixedOrder | NegotiatedOrder
        if settings.order == FIXED:
            self._order = FixedOrder(self._comms, self._barrier, self._engine, self._recorder,
                                     self.specs, bool(device) and all(device))
        else:
            self._order = NegotiatedOrder(self._comms, self._engine, self._recorder, self.specs)
        self._steps = CollectiveSteps(self._comms, self._barrier, self._order)

    def _start_engine(self) -> None:
        self._engine.start_thread(self._use_thread)
        atexit.register(self._stop)

    @property
    def settings(self) -> ExchangeSettings:
        """Current settings, with the decisions of the machine and autotuning."""
        return self._order.settings

    def fail(self, error: BaseException) -> None:
        """Send an error of this rank to all ranks; their calls raise ``RankFailed``."""
        self._failures.fail(error)

    # -- the end -----------------------------------------------------------------------------
    def close(self) -> None:
        """Free all resources; collective, unless the exchange has failed.

        During a step it notifies the other ranks that this one has left. An error on a rank does
        not affect ranks that only have to close.
        """
        if self._closed:
            return
        if self._failures.failure is None and not self._order.submitted_names():
            # Free blocks inside MPI until all ranks call it, and would not detect an error.
            farewell = self._comms.control.Ibarrier()
            with suppress(RankFailed):
                self._wait("closing", farewell.Test)
        self._stop()
        if self._failures.failure is None:
            if self._env_recorder is not None:
                save_all(self._env_recorder, self._comms.control)
            self._comms.free()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    def _stop(self) -> None:
        """Stop progress; a pending step ends with an error on all ranks."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self._stop)
            if self._order.submitted_names():
                self.fail(ExchangeError("the exchange was closed during a step"))
            self._engine.stop()

    # -- inside ------------------------------------------------------------------------------
    def _poll(self) -> bool:
        moved = self._failures.poll()
        return (self._failures.failure is None and self._order.poll()) or moved

    def _check(self) -> None:
        if self._closed:
            raise ExchangeError("the exchange was closed")
        self._failures.check()

    def _check_idle(self, call: str) -> None:
        names = self._order.submitted_names()
        if names:
            raise ExchangeMismatch(f"{call} called during a step: array '{names[0]}' is pending; "
                                   "call wait() first",
                                   tuple(names))

    def _index(self, key: int | str) -> int:
        if isinstance(key, str) and key in self._indices:
            return self._indices[key]
        if hasattr(key, "__index__") and 0 <= operator.index(key) < len(self.specs):
            return operator.index(key)
        raise ExchangeMismatch(f"array {key!r} was not declared", (str(key),))

    def _replace(self, index: int) -> None:
        """Substitute zeros for an array that was not submitted, or raise."""
        if self.settings.missing == "error":
            names = [self.specs[each].name for each in self._order.missing_arrays()] or [
                self.specs[index].name]
            raise ExchangeError(f"array missing in step {self._order.step}: '{names[0]}'" + (
                f" and {len(names) - 1} others" if len(names) > 1 else "") +
                "; call ready() for every array, or choose missing='zeros'", tuple(names))
        self._order.mark_ready(index, None)

    @contextmanager
    def _propagate_errors(self) -> Iterator[None]:
        """Send an error of the block to all ranks."""
        try:
            yield
        except Exception as error:
            self._failures.fail(error)
            raise

    def _run(self, task: Any, place: str = "between steps") -> None:
        """Run a task on the first queue, after its pending tasks."""
        over: list[bool] = []
        self._wait(place, lambda: bool(over), task, lambda: over.append(True))

    def _wait(self, place: str, over: Callable[[], bool], task: Any = None,
              on_done: Callable[[], object] = nothing) -> None:
        """Progress until a condition holds; raise an error that ends the exchange."""
        start, self._activity = time.perf_counter(), place
        order = self._order

        def has_ended() -> bool:
            self._failures.check()
            return over()

        def awaited_names() -> list[str]:
            return [spec.name
                    for spec in self.specs] if place == AT_ONCE else order.unfinished_names()

        order.add_waiters(1)
        try:
            self._engine.wait(has_ended, self._failures.stall_callback(order.step, awaited_names),
                              task, on_done)
        finally:
            order.add_waiters(-1)
            self._activity = "between steps"
        self._recorder.record_blocked(start, time.perf_counter())

    def _end_step(self) -> None:
        self._recorder.end_step(time.perf_counter())
        if self._tuner is not None and not self._tuner.done:
            step = self._recorder.last[-1]
            sample = self._tuner.add_step(step.stop - step.start)
            if sample is not None:
                self._run(self._steps.tune(self._tuner, sample))

    def _create_tuner(self, comm: Any, path: str) -> Autotune | None:
        """Return the tuner; None if a log has the knobs of an earlier run, which it applies."""
        chosen = comm.bcast(knobs_from_log(path) if self._comms.rank == 0 else None)
        if chosen is None:
            return Autotune(self.settings.knobs, path, self._comms.rank)
        retune(self._comms, self._order, chosen)
        return None

    def _answer_query(self, step: int, names: list[str]) -> tuple[list[str], str]:
        """Return the arrays of a step that this rank has not submitted, and its activity."""
        absent = [] if self._activity == AT_ONCE else [
            name for name in names if self._order.is_missing(name, step)]
        return absent, f"{self._activity} (step {self._order.step})"


def _seconds(argument: str, value: float | None, usual: float) -> float:
    """Return an argument in seconds, or the default."""
    if value is None:
        return usual
    if not as_number(argument, value, "seconds") > 0:
        raise ArgumentError(argument, f"expected seconds above 0, got {value!r}")
    return float(value)
