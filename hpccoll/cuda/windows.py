"""Windows: copies device memory through pinned host memory, segment by segment.

    device --inward--> window --> phases of a segment --> same window --outward--> device
                         ^        messages, reductions                |
                         +------ when the results are copied ---------+

The unit is a segment of the plan: while two are in flight between ranks, one stream copies the
input of the next ones into their windows, and another copies the results of earlier ones back.
Inside a segment a phase starts when its input is loaded, and a result is stored after its last
write (:mod:`hpccoll.cuda.transfers`).

Nothing here blocks: streams wait for events, and a phase without its data returns ``False`` like a
test for messages. There is one window per segment in flight, and as many for prefetching if they
fit. Small buffers are copied on the caller's stream, into one window and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from hpccoll.cuda.staging import StagedBuffer, allocate_pinned, has_completed, keep
from hpccoll.cuda.transfers import Range, transfers
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Extent

#: Largest bytes of windows of one buffer with prefetching.
AHEAD_BYTES = 64 << 20
#: Minimum bytes of a separate copy in a segment.
FAIR = 256 << 10


class WindowedBuffer:
    """Device buffer of a call, and its windows.

    Args:
        plan: the plan, of :mod:`hpccoll.runtime.planning.plan`.
        array: the buffer, as elements of the plan.
        staged: holds the caller's stream.
        names: its names in the plan: input, output, or both.
        after: another buffer on the same memory, which must be read before this one is written.
    """

    def __init__(self, plan: Any, array: Any, staged: StagedBuffer, names: tuple[str, ...],
                 after: WindowedBuffer | None = None):
        self.plan, self.staged, self.after = plan, staged, after
        self.memory, self.dtype = array.view("u1"), array.dtype
        # Most segments share a program.
        programs = {id(segment.program): segment.program for segment in plan.segments}
        found = {key: transfers(program, names, self.dtype.itemsize, FAIR)
                 for key, program in programs.items()}
        self.moves = [found[id(segment.program)] for segment in plan.segments]
        nbytes = max(each.count for each in self.moves) * self.dtype.itemsize
        number = len(plan.segments)
        #: Segments that are prefetched while others run.
        self.prefetch = plan.depth if 2 * plan.depth * nbytes <= AHEAD_BYTES else 0
        self.windows = [allocate_pinned(staged.cupy, nbytes)
                        for _ in range(min(plan.depth + self.prefetch, number) if nbytes else 0)]
        self.inward = self.outward = staged.stream
        if number > 1 or any(len(each.loads) > 1 or len(each.stores) > 1 for each in self.moves):
            with staged.device:
                stream = staged.cupy.cuda.Stream
                self.inward, self.outward = stream(non_blocking=True), stream(non_blocking=True)
                begun = staged.mark(staged.stream)
                self.inward.wait_event(begun)
                self.outward.wait_event(begun)
        #: By segment: events of its loads, by group; the earlier copies of its window; the phases
        #: that each group of its stores waits for.
        self.arrived: dict[int, list[Any]] = {}
        self.vacated: dict[int, Any] = {}
        self.left: dict[int, list[int]] = {}
        #: By window, the event of the last copy from it.
        self.stored: dict[int, Any] = {}

    def begin(self, number: int) -> None:
        """Queue the loads of the next segment to run, or of a later one.

        Segments of one track run one after the other, ``depth`` apart. So when this one starts, the
        window to load belongs to a completed segment of the same track.
        """
        for each in range(0 if not number else number + self.prefetch, number + self.prefetch + 1):
            if each < len(self.plan.segments) and each not in self.arrived:
                self._load(each)

    def _load(self, number: int) -> None:
        moves, index = self.moves[number], self._index(number)
        for past in self.arrived, self.vacated, self.left:
            past.pop(number - len(self.windows), None)
        vacated = self.vacated[number] = self.stored.get(index)
        self.left[number], self.arrived[number] = list(moves.shares), []
        with self.staged.device:
            if vacated is not None and moves.loads:
                self.inward.wait_event(vacated)
            for group in moves.loads:
                for there, window in self._places(number, group):
                    there.get(stream=self.inward, out=window, blocking=False)
                self.arrived[number].append(self.staged.mark(self.inward))

    def can_start(self, number: int, phase: int) -> bool:
        """Return True if a phase of a segment can start: its input is loaded."""
        moves, vacated, cupy = self.moves[number], self.vacated[number], self.staged.cupy
        with self.staged.device:  # or the first query of a thread creates a context on device 0
            if vacated is not None and (not phase or moves.anywhere):
                if not has_completed(cupy, vacated):
                    return False
                self.vacated[number] = None
            return all(has_completed(cupy, self.arrived[number][group])
                       for group in moves.needs[phase])

    def queue_stores(self, number: int, phase: int) -> None:
        """Queue the stores of the elements that a phase of a segment wrote last."""
        moves, left = self.moves[number], self.left[number]
        group = moves.gives[phase]
        if group < 0:
            return
        left[group] -= 1
        if left[group]:
            return
        with self.staged.device:
            if self.after is not None:
                for event in self.after.arrived[number][-1:]:
                    self.outward.wait_event(event)
            for there, window in self._places(number, moves.stores[group]):
                there.set(window, stream=self.outward)
            event = self.staged.mark(self.outward)
        index = self._index(number)
        self.stored[index] = event
        self.staged.underway[index] = event, self.windows[index]

    def view(self, number: int, extent: Extent) -> numpy.ndarray:
        """Return the part of a segment's window for an extent."""
        size = self.dtype.itemsize
        start = self.moves[number].place(extent.offset) * size if extent.count else 0
        window: numpy.ndarray = self.windows[self._index(number)] if self.windows else (
            numpy.empty(0, "u1"))
        return window[start:start + extent.count * size].view(self.dtype)

    def abandon(self) -> None:
        """Hold the windows until all loads have completed."""
        with self.staged.device:
            event = self.staged.mark(self.inward)
        for window in self.windows:
            keep(event, window)

    def _index(self, number: int) -> int:
        return number % max(len(self.windows), 1)

    def _places(self, number: int, ranges: Sequence[Range]) -> list[tuple[Any, numpy.ndarray]]:
        """Return ranges of a segment in device memory and in its window, as bytes."""
        moves, size, shift = (self.moves[number], self.dtype.itemsize,
                              self.plan.segments[number].shift)
        window, found = self.windows[self._index(number)], []
        for start, stop in ranges:
            place = moves.place(start) * size
            found.append((self.memory[(start + shift) * size:(stop + shift) * size],
                          window[place:place + (stop - start) * size]))
        return found


class Windows:
    """Device buffers of a call.

    Args:
        buffers: the buffers by their names in the plan.
    """

    def __init__(self, buffers: Mapping[str, WindowedBuffer]):
        self.buffers = buffers
        self.several = list({id(each): each for each in buffers.values()}.values())

    def begin(self, number: int) -> None:
        """Queue the loads of a segment; see :meth:`WindowedBuffer.begin`."""
        for each in self.several:
            each.begin(number)

    def can_start(self, number: int, phase: int) -> bool:
        """Return True if a phase of a segment can start."""
        return all([each.can_start(number, phase) for each in self.several])

    def queue_stores(self, number: int, phase: int) -> None:
        """Queue the stores at the end of a phase of a segment."""
        for each in self.several:
            each.queue_stores(number, phase)

    def view(self, number: int, others: Callable[[Extent], Any]) -> Callable[[Extent], Any]:
        """Return a function that finds a segment's extents; ``others`` finds host memory."""
        def view(extent: Extent) -> Any:
            buffer = self.buffers.get(extent.buffer)
            return others(extent) if buffer is None else buffer.view(number, extent)
        return view


def windows_of(call: Any, plan: Any) -> Windows | None:
    """Return windows for the device buffers of a call, with the first loads queued.

    ``None`` for a call on memory that the transport can access.
    """
    source, sink = call.source, call.sink
    entering = source.staged if source is not None else None
    leaving = sink.staged if sink is not None else None
    if entering is None and leaving is None:
        return None
    made: dict[str, WindowedBuffer] = {}
    if source is not None and entering is not None:
        names = (IN, OUT) if source is sink else (IN,)
        made |= dict.fromkeys(names, WindowedBuffer(plan, source.array, entering, names))
    if sink is not None and leaving is not None and OUT not in made:
        # An in-place alltoall also has its input there.
        made[OUT] = WindowedBuffer(plan, sink.array, leaving, (OUT,),
                                   made[IN] if entering is leaving else None)
    found = Windows(made)
    try:
        found.begin(0)
    except BaseException:
        for each in found.several:
            each.abandon()
        raise
    return found
