"""A device without a device: streams, events and pinned memory that are as late as they may be.

Nothing that is queued happens before somebody waits for it; then what has to come before it
happens, and nothing else. With a seed, work that nobody waits for happens now and then, too, in any
order that streams and events allow. So work is late where nothing orders it, or early, and whoever
forgot an event, or used pinned memory again too soon, gets wrong data.

Who asks an event twice whether it has happened gets it: a device goes on by itself.

The rules are those of CUDA's programming guide: streams of one device are ordered by events, and by
the null stream where they are not ``non_blocking``; every thread has a current device, and a
current stream on each; work on a stream reaches the memory of its own device. A null stream is a
number, 0, that belongs to no device: it means that of the device which is current when it is used.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from support.gpu.pinned import Pinned
from support.gpu.tasks import NOT_READY, CudaError, CudaStatus, GpuTask, nothing


class Devices:
    """Devices, what is queued on them, and what is held."""

    def __init__(self, devices: int = 1, seed: int | None = None):
        self.lock, self.here = threading.RLock(), threading.local()
        self.chance = None if seed is None else random.Random(seed)
        self.pending: list[GpuTask] = []
        self.held: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, float] = {}
        self.first, self.fault, self.contexts = 0, 0, set[int]()
        self.events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
        self.nulls = [Stream(self, device, null=True) for device in range(devices)]
        self.streams: list[weakref.ref[Stream]] = []
        self.share: Any = None
        self.memory: weakref.WeakValueDictionary[tuple[int, int], numpy.ndarray] = (
            weakref.WeakValueDictionary())

    # -- what happens -----------------------------------------------------------------------
    def finish(self, task: GpuTask) -> None:
        """Do a task and, first, what it comes after; nothing else."""
        with self.lock:
            waiting, seen = [task], set()
            while waiting:
                top = waiting[-1]
                before = [other for other in top.after if not other.done]
                if before and not top.done:
                    if id(top) in seen:
                        raise CudaError("the host waits for ever: work comes after itself")
                    seen.add(id(top))
                    waiting += before
                    continue
                if not top.done and (missing := top.awaited()):
                    raise CudaError(f"the host waits for ever: {missing}")
                waiting.pop()
                if not top.done:
                    top.done, top.after, run, top.run = True, (), top.run, nothing
                    self.pending.remove(top)
                    run()  # what is done keeps no memory

    def pass_time(self) -> None:
        """Do something that is queued although nobody waits for it; requires a seed."""
        if self.chance is None:
            return
        with self.lock:
            if self.pending:
                task = self.chance.choice(self.pending)
                if not self.stuck(task):
                    self.finish(task)

    def stuck(self, task: GpuTask) -> bool:
        """Tell whether a task, or what it comes after, waits for something beside other work."""
        waiting, seen = [task], set()
        while waiting:
            top = waiting.pop()
            if not top.done and id(top) not in seen:
                if top.missing:
                    return True
                seen.add(id(top))
                waiting += top.after
        return False

    def finish_all(self) -> None:
        """Do all that is queued."""
        with self.lock:
            while self.pending:
                self.finish(self.pending[-1])

    def queue(self, run: Callable[[], Any], after: Sequence[GpuTask]) -> GpuTask:
        """Queue work behind other work."""
        with self.lock:
            task = GpuTask(run, after)
            self.pending.append(task)
            if self.chance is not None and self.chance.random() < 0.3:
                self.pass_time()
            return task

    def called(self, function: str) -> None:
        """Fail, if this call of a function shall."""
        self.calls[function] += 1
        self.contexts.add(self.device)
        if function in self.faults:
            self.faults[function] -= 1
            if self.faults[function] < 0:
                self.faults = {name: left for name, left in self.faults.items() if left != -1}
                raise CudaError(f"{function}: cudaErrorUnknown")

    # -- where a thread is ------------------------------------------------------------------
    @property
    def device(self) -> int:
        """The current device of this thread."""
        return getattr(self.here, "device", 0)

    @property
    def currents(self) -> dict[int, list[Stream]]:
        """Device -> the streams that this thread has made current, the last one last."""
        if not hasattr(self.here, "streams"):
            self.here.streams = defaultdict(list)
        return self.here.streams

    def current(self) -> Stream:
        """The current stream of this thread on its current device."""
        entered = self.currents[self.device]
        return entered[-1] if entered else self.nulls[self.device]

    # -- memory -----------------------------------------------------------------------------
    def allocated(self, raw: numpy.ndarray, device: int) -> None:
        """Note memory of a device, to be found by its address."""
        if not isinstance(raw, numpy.ndarray):
            return  # what NumPy makes of one element, which nobody looks for
        while isinstance(raw.base, numpy.ndarray):
            raw = raw.base
        self.memory[raw.ctypes.data, device] = raw

    def memory_at(self, address: int, nbytes: int, device: int) -> numpy.ndarray | None:
        """The bytes at an address of a device; ``None`` where it has no such memory."""
        for (start, where), raw in list(self.memory.items()):
            if where == device and start <= address and address + nbytes <= start + raw.nbytes:
                return raw.reshape(-1).view("u1")[address - start:address - start + nbytes]
        return None

    # -- pinned memory ----------------------------------------------------------------------
    def pin(self, nbytes: int) -> Pinned:
        """Allocate pinned memory."""
        self.called("alloc_pinned_memory")
        memory = Pinned(nbytes)
        memory.held, memory.nbytes = self.held, nbytes
        self.held["pinned"] += nbytes
        return memory


class Stream:
    """A queue of work on a device."""

    def __init__(self, machine: Devices, device: int, null: bool = False,
                 non_blocking: bool = False):
        self.machine, self.device_id, self.null = machine, device, null
        self.non_blocking, self.last, self.synchronized = non_blocking, GpuTask(nothing, ()), 0
        self.last.done = True
        self.graph: list[Callable[[], Any]] | None = None
        self.broken = False
        if not null:
            machine.held["streams"] += 1
            machine.streams.append(weakref.ref(self))

    def __del__(self) -> None:
        if not self.null:
            self.machine.held["streams"] -= 1

    @property
    def ptr(self) -> int:
        """The number by which other libraries know the stream."""
        return 0 if self.null else id(self)

    @property
    def meant(self) -> Stream:
        """The stream that is used here and now: of null streams, that of the current device."""
        return self.machine.nulls[self.machine.device] if self.null else self

    @property
    def done(self) -> bool:
        """Whether all is done; time passes while one asks."""
        self._refuse_in_capture("streamQuery")
        self.machine.pass_time()
        return self.meant.last.done

    def is_capturing(self) -> bool:
        """Tell whether work goes into a graph."""
        return self.graph is not None

    def begin_capture(self) -> None:
        """Put work into a graph from here on."""
        self.graph, self.broken = [], False

    def end_capture(self) -> list[Callable[[], Any]]:
        """Return the graph."""
        graph, self.graph = self.graph, None
        if graph is None or self.broken:
            raise CudaError("streamEndCapture: cudaErrorStreamCaptureInvalidated")
        return graph

    def _refuse_in_capture(self, function: str) -> None:
        if self.graph is not None:
            self.broken = True
            raise CudaError(f"{function}: cudaErrorStreamCaptureUnsupported")

    def push(self, run: Callable[[], Any], *after: GpuTask) -> None:
        """Queue work behind this stream's, other tasks, and what the null stream stands for."""
        if self.graph is not None:
            self.graph.append(run)
            return
        machine = self.machine
        before = [self.last, *after]
        if self.null:
            others = [ref() for ref in machine.streams]
            before += [one.last for one in others if one is not None and not one.non_blocking
                       and one.device_id == self.device_id]
        elif not self.non_blocking:
            before.append(machine.nulls[self.device_id].last)
        self.last = machine.queue(run, [task for task in before if not task.done])

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        self.machine.called("streamSynchronize")
        self._refuse_in_capture("streamSynchronize")
        meant = self.meant
        meant.synchronized += 1
        if meant.null:
            meant.push(nothing)  # behind the streams that it waits for
        self.machine.finish(meant.last)

    def record(self, event: Event | None = None) -> Event:
        """Have an event happen after what is queued."""
        event, meant = Event(self.machine) if event is None else event, self.meant
        if event.device_id != meant.device_id:
            raise CudaError(f"eventRecord: cudaErrorInvalidResourceHandle: an event of device "
                            f"{event.device_id} on a stream of device {meant.device_id}")
        meant.push(event.happening())
        event.task, event.asked, event.captured = meant.last, False, meant.graph is not None
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is queued from here on come after an event, as it was last recorded."""
        self.meant.push(nothing, *([event.task] if event.task else []))

    def __enter__(self) -> Stream:
        if self.device_id != self.machine.device:
            raise CudaError(f"a stream of device {self.device_id} made current "
                            f"on device {self.machine.device}")
        self.machine.currents[self.device_id].append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.currents[self.device_id].pop()


class Event:
    """A place in a stream of the device that is current when it is made."""

    def __init__(self, machine: Devices):
        self.machine, self.task, self.asked, self.captured = machine, None, False, False
        self.device_id, self.ptr = machine.device, id(self)
        machine.held["events"] += 1
        machine.events[self.ptr] = self

    task: GpuTask | None

    def __del__(self) -> None:
        self.machine.held["events"] -= 1

    def happening(self) -> Callable[[], Any]:
        """What is done when it happens, as it is recorded now."""
        return nothing

    def record(self, stream: Stream | None = None) -> None:
        """Happen after what is queued on a stream."""
        (stream or self.machine.current()).record(self)

    def synchronize(self) -> None:
        """Wait until it has happened."""
        self.machine.called("eventSynchronize")
        self._refuse_captured("eventSynchronize")
        if self.machine.fault:
            raise CudaStatus(self.machine.fault)
        if self.task is not None:
            self.machine.finish(self.task)

    @property
    def done(self) -> bool:
        """Whether it has happened; a fault, too, is "not yet"."""
        return self.query() == 0

    def query(self) -> int:
        """The status of ``eventQuery``; time passes while one asks."""
        self.machine.called("eventQuery")
        self._refuse_captured("eventQuery")
        if self.machine.fault:
            return self.machine.fault
        self.machine.pass_time()
        if self.task is not None and self.asked and not self.machine.stuck(self.task):
            self.machine.finish(self.task)  # else whoever asks would wait for other ranks
        self.asked = True
        return 0 if self.task is None or self.task.done else NOT_READY

    def _refuse_captured(self, function: str) -> None:
        if self.captured:
            raise CudaError(f"{function}: cudaErrorCapturedEvent")


class Device:
    """A device; current for a thread inside a ``with`` block."""

    def __init__(self, machine: Devices, number: int):
        self.machine, self.id = machine, number
        self.left: list[int] = []

    def use(self) -> None:
        """Be the current device of this thread."""
        self.machine.here.device = self.id

    def __enter__(self) -> Device:
        self.left.append(self.machine.device)
        self.machine.here.device = self.id
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.here.device = self.left.pop()
