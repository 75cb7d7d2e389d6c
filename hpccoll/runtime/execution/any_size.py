"""Targets of the compiled executor for calls of one form and any size.

A plan for any size has symbols instead of numbers (:mod:`hpccoll.ir.sizes`). Its compiled plan gets
the numbers of a call in C (``_any_size.c``), so a size that was not seen before costs no lowering.
Only a long wait needs the plan of the size: :class:`AnySizeWaits` makes it then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy

from hpccoll.arrays import half
from hpccoll.calls.any_size import (
    COUNTED,
    NO_LIMIT,
    UNKNOWN,
    VECTOR,
    Blocks,
    Sides,
    blocks_of,
    counts_of,
    cut_of,
    layout_of,
    sides_of,
    symbols_of,
    with_counts,
)
from hpccoll.calls.call import Call
from hpccoll.calls.facts import facts_of
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.lowering import cut_into
from hpccoll.ir.sizes import Size, UndecidedError
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.compiled import addresses, channels_of, hash_of, kernel_of
from hpccoll.runtime.execution.compiled_plan import Code, encode_any_size, encode_segments
from hpccoll.runtime.execution.slow_path import PlanWaits
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.planning.plan import Plan, SegmentRule
from hpccoll.transport.shm.channels import PLACES, SMALL_CELL_BYTES, Channel
from hpccoll.transport.shm.endpoint import SharedEndpoint

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

if BUILT:
    from hpccoll.runtime.execution import _executor

#: Largest scratch of a compiled plan for any size, and number of sizes with kept state for waits.
MOST_SCRATCH, KEPT = 16 << 20, 16
#: Largest message of a target, at least, in multiples of that of the first call.
GROWTH = 4
#: Returns the plan of a call.
Planner = Callable[[Call], Plan]


def native_at_any_size(call: Call, native: Any, form: int, rank: int, size: int,
                       nbytes: tuple[int, int]) -> Any:
    """Return the target of calls that the MPI library runs; ``None`` for unusual buffers.

    Args:
        call: a call of the form.
        native: the native method, which may record its calls.
        form: call hash of the form; 0 if calls are not compared.
        rank, size: of the communicator.
        nbytes: bytes of the calls that it runs, from and up to (exclusive).
    """
    cut = cut_of(call, size)
    sides = sides_of(call, cut, size) if cut is not None else None
    if cut is None or sides is None:
        return None
    counts = (1,) if cut == UNKNOWN else counts_of(call, cut)
    blocks = len(counts) if cut == COUNTED else 1
    return _make_plan(call, cut, sides, native, form, rank, size, nbytes,
                      Blocks(blocks, 1, blocks, NO_LIMIT), counts, SegmentRule(NO_LIMIT, 0), 1,
                      NO_LIMIT, ())


def plan_at_any_size(context: Context, call: Call, plan: Plan, planner: Planner,
                     nbytes: tuple[int, int], rule: SegmentRule) -> Any:
    """Return the target of calls that a compiled plan runs; ``None`` if ranks have no common one.

    Args:
        context, call, plan: the communicator's context, a call of the form, and its plan.
        planner: returns the plan of a call with the same algorithm.
        nbytes: bytes of the calls that it runs, from and up to (exclusive).
        rule: how blocks are cut into segments. Calls with as many segments have a common target.
    """
    cut, number = cut_of(call, context.size), len(plan.segments)
    if (cut is None or cut == UNKNOWN or context.phases is not None
            or number > 1 and not rule.unit or call.op is not None and half.is_half(call.dtype)):
        return None
    schedule, size = plan.schedule, context.size
    sides, itemsize = sides_of(call, cut, size), call.dtype.itemsize
    sizes, step = symbols_of(cut, schedule.nblocks if cut == VECTOR else size, number)
    try:
        cuts = cut_into(schedule.program(context.rank),
                        layout_of(call, cut, schedule, context.rank, size, sizes), number, step)
        code = encode_any_size(cuts, plan.depth, itemsize, PLACES)
    except UndecidedError:
        return None
    if sides is None or code is None or any(each.program.waits for each in cuts):
        return None
    counts = counts_of(call, cut)
    blocks = blocks_of(cut, counts, schedule.nblocks, call.op is not None)
    if sum(counts) < blocks.least:
        return None
    here = encode_segments(plan.segments, plan.depth, itemsize, PLACES)
    endpoint = cast(SharedEndpoint, context.endpoint)
    most_bytes = SMALL_CELL_BYTES
    if here is None or here.ways != code.ways:
        return None
    if here.longest > most_bytes:
        # Cells of a larger size take more shared memory, and a larger message needs a new target.
        most_bytes = GROWTH << (here.longest - 1).bit_length()
        if endpoint.node.readv is None or here.longest <= endpoint.node.cell_bytes:
            most_bytes = min(most_bytes, endpoint.node.cell_bytes)
    channels = channels_of(endpoint, here._replace(longest=most_bytes), 0)
    if channels is None:
        return None
    # Python receives messages of a long wait there: of every size that the target runs.
    growth = max(most_bytes // max(here.longest, 1), 4)
    room = max(growth * plan.scratch * itemsize, 4 * most_bytes)
    scratch = context.scratch(min(room, MOST_SCRATCH))
    waiting = AnySizeWaits(context, call, cut, planner, channels, scratch)
    source, sink = (one.array.nbytes if one is not None else 0 for one in (call.source, call.sink))
    compiled_plan = _executor.CompiledPlan(
        here.words, (source, sink), tuple(map(addresses, channels)),
        kernel_of(call) if call.op is not None else None, scratch, waiting, waiting.wait,
        not context.limits.spins, *hash_of(context, plan))
    form = form_hash(context, plan.description)
    return _make_plan(call, cut, sides, compiled_plan, form, context.rank, context.size, nbytes,
                      blocks, counts, rule, number, most_bytes, _operands(code, blocks, number))


def form_hash(context: Context, description: Description | None) -> int:
    """Publish the description of a call's form; return its hash, 0 if calls are not compared."""
    if description is None:
        return 0
    return context.guard.call_hash(description._replace(count=""))


def _make_plan(call: Call, cut: int, sides: Sides, target: Any, form: int, rank: int, size: int,
               nbytes: tuple[int, int], blocks: Blocks, counts: Sequence[int], rule: SegmentRule,
               segments: int, most_bytes: int, operands: tuple[Any, ...]) -> Any:
    facts, n, least, end, amount = facts_of(call), sum(counts), 1, NO_LIMIT, 0
    if cut != UNKNOWN:
        # Bytes of the call, and what its description counts, per unit of n.
        unit = (facts.nbytes or 0) // n
        amount = unit // (facts.itemsize if facts.reduces else 1)
        least = max(-(-nbytes[0] // unit), blocks.least)
        end = min(-(-nbytes[1] // unit), blocks.end)
    # In place, both are in the argument that is an array.
    both = (0 if call.collective == "scatter" else 1) if call.in_place else None
    source = -1 if call.source is None else 0 if both is None else both
    sink = -1 if call.sink is None else 1 if both is None else both
    return _executor.AnySize(
        target, cut, (rank, size), (blocks.number, blocks.unit), call.dtype.itemsize, (least, end),
        (segments, rule.most, rule.unit, most_bytes), sides.elements, sides.extents, sides.scales,
        (form, amount), len(set(counts)) == 1, (source, sink), operands)


def _operands(code: Code, blocks: Blocks, segments: int) -> tuple[Any, ...]:
    """Return the words of a plan that depend on sizes: word, constant, multiples of bounds.

    A block is the difference of two bounds, and so is a segment, behind all blocks. So a range of
    blocks has two terms only.
    """
    operands: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
    for word, value in enumerate(code.words):
        if isinstance(value, Size):
            factors: dict[int, int] = {}
            parts = cast(Size, value).factors
            # The symbol of a block is what the segments before the last one leave of it.
            parts = {**parts, blocks.number: parts.get(blocks.number, 0) - (segments - 1) * sum(
                factor for block, factor in parts.items() if block < blocks.number)}
            for block, factor in parts.items():
                factors[block + 1] = factors.get(block + 1, 0) + factor
                factors[block] = factors.get(block, 0) - factor
            operands.append((word, value.constant, tuple(
                (bound, factor) for bound, factor in sorted(factors.items()) if factor and bound)))
    return tuple(operands)


class AnySizeWaits:
    """Waits of a plan for any size; makes the plan of a size when a call of that size waits."""

    def __init__(self, context: Context, call: Call, cut: int, planner: Planner,
                 channels: list[Channel], scratch: Any):
        self.context, self.cut, self.planner, self.channels = context, cut, planner, channels
        # Only the form of the call is kept, not the memory.
        self.call, self.scratch, self.held = _without_memory(call), scratch, half.accumulator(0)
        self.kept: dict[tuple[int, ...], PlanWaits] = {}

    def wait(self, run: Any) -> None:
        """Wait for the end of a run.

        Raises:
            CollectiveTimeout: no progress within the timeout.
        """
        found = self.kept.get(run.counts)
        if found is None:
            call = with_counts(self.call, self.cut, run.counts, self.context.size)
            plan = self.planner(call)
            code = cast(Code, encode_segments(plan.segments, plan.depth, call.dtype.itemsize,
                                              PLACES))
            found = PlanWaits(self.context, call, plan, code, self.channels,
                              (self.scratch, self.held), 0)
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[run.counts] = found
        found.nbytes = {name: nbytes for name, one, nbytes in zip(
            (IN, OUT), (self.call.source, self.call.sink), run.sizes) if one is not None}
        found.wait(run)


def _without_memory(call: Call) -> Call:
    """Return a call of the same form on empty buffers."""
    source, sink = (one and one._replace(array=numpy.empty(0, one.array.dtype))
                    for one in (call.source, call.sink))
    return call._replace(source=source, sink=sink, layout=Call.layout)
