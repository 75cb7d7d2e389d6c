"""Conversion of MSCCL's XML to a schedule.

A file has concurrent threadblocks for every GPU (here: rank). A threadblock sends to one rank and
receives from one rank, on a channel. Its steps are sequential: ``s`` send, ``r`` receive, ``cpy``
copy, ``re`` reduce, ``nop``, and the fused ``rcs`` (receive, store and send), ``rrc`` (receive and
reduce), ``rrcs``, ``rrs`` (stores nothing). A step may wait for a step of another threadblock
(``depid``, ``deps``).

Every message and every local step becomes a round with the same dependencies: threadblocks become
lanes. MSCCL's send ends once its content is copied, so only a step that overwrites the content
waits for its end. Rounds are numbered by levels. A message has the same level on both ranks, above
its dependencies on either rank, so both ranks order their messages equally.
Source of the format: microsoft/msccl-tools; Cowan et al., "MSCCLang", ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.order import Waits
from hpccoll.ir.schedule import (
    LEFT,
    RECV,
    SEND,
    Program,
    Round,
    Schedule,
    Span,
    Step,
    copy,
    recv,
    reduce,
    send,
)
from hpccoll.ir.wellformed import MOST_SLOTS

#: MSCCL's names of collectives.
NAMES = {"allreduce": "allreduce", "allgather": "allgather", "alltoall": "alltoall",
         "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter"}
#: Parts of fused steps: receive, reduce the received data, store it, send.
KINDS = {"s": (False, False, False, True), "r": (True, False, True, False),
         "rcs": (True, False, True, True), "rrc": (True, True, True, False),
         "rrcs": (True, True, True, True), "rrs": (True, True, False, True)}
LOCAL = ("cpy", "re", "nop")

#: Half of a step: rank, threadblock, number, and True for the sending half.
Half = tuple[int, int, int, bool]


class FileStep(NamedTuple):
    """Step of the file."""

    kind: str
    source: Span
    into: Span
    waits: tuple[int, int]


class Threadblock(NamedTuple):
    """Threadblock of the file: peers (-1 for none), channel, steps."""

    to: int
    frm: int
    channel: int
    steps: list[FileStep]


def read_msccl(text: str, name: str) -> Schedule:
    """Read MSCCL's XML; :func:`hpccoll.verify` proves the schedule.

    Args:
        text: the XML.
        name: name of the file, for messages.

    Raises:
        ScheduleError: malformed, not expressible as a schedule, unmatched messages, or cyclic
            dependencies.
    """
    from xml.etree import ElementTree
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ScheduleError(f"{name}: not XML: {error}") from error
    collective = NAMES.get(root.get("coll", ""))
    if root.tag != "algo" or collective is None:
        raise ScheduleError(f"{name}: expected <algo coll=...> with one of {', '.join(NAMES)}, "
                            f"got <{root.tag} coll={root.get('coll')!r}>")
    gpus = sorted(root.iter("gpu"), key=lambda gpu: _number(gpu, "id", name))
    size = len(gpus)
    if [_number(gpu, "id", name) for gpu in gpus] != list(range(size)):
        raise ScheduleError(f"{name}: its <gpu> are not numbered 0, 1, 2, ...")
    chunks = _chunks(collective, gpus[0], size, name) if size else 0
    blocks = [[_threadblock(tb, name) for tb in gpu.iter("tb")] for gpu in gpus]
    place = _places(collective, root.get("inplace") == "1")
    spare = max((_number(gpu, "s_chunks", name) for gpu in gpus), default=0)
    halves = _assign_levels(blocks, place, spare, name)
    keys = _scratch_keys(halves, collective, size)
    vector = COLLECTIVES[collective].payload == "vector"
    before = _initial_steps(collective, chunks, root.get("inplace") == "1")
    programs = []
    for rank in range(size):
        rounds, after = _rounds(halves[rank], before(rank),
                                partial(_aliased_slots, collective, rank))
        used = max((span.stop for steps in rounds for step in steps
                    for span in (*step.spans, *step.source) if span.buffer == TMP), default=0)
        scratch = tuple(keys.get((rank, slot), slot % max(chunks, 1)) for slot in range(used))
        programs.append(Program(rounds, scratch, after))
    return Schedule(COLLECTIVES[collective], root.get("name") or name, size,
                    programs.__getitem__, nblocks=chunks if vector else 1,
                    uniform=not vector)


def _number(element: Any, field: str, name: str, default: int | None = None) -> int:
    value = element.get(field)
    try:
        return default if value is None and default is not None else int(value)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name}: <{element.tag}> has {field}={value!r}, expected an "
                            "integer") from None


def _chunks(collective: str, gpu: Any, size: int, name: str) -> int:
    """Return the number of chunks of a vector; other payloads must have one chunk per block."""
    given, wanted = _number(gpu, "i_chunks", name), _number(gpu, "o_chunks", name)
    if COLLECTIVES[collective].payload == "vector":
        return max(given, wanted)
    blocks = {"allgather": (1, size), "reduce_scatter": (size, 1), "alltoall": (size, size)}
    if given > blocks[collective][0] or wanted > blocks[collective][1]:
        raise ScheduleError(f"{name}: splits a block of {collective} into chunks "
                            f"(i_chunks={given}, o_chunks={wanted}); schedules split vectors only")
    return size


def _threadblock(tb: Any, name: str) -> Threadblock:
    steps = []
    for number, step in enumerate(sorted(tb.iter("step"), key=lambda s: _number(s, "s", name))):
        kind, count = step.get("type", ""), _number(step, "cnt", name, 1)
        if kind not in KINDS and kind not in LOCAL:
            raise ScheduleError(f"{name}: unknown type of step {kind!r}; use one of "
                                f"{', '.join([*KINDS, *LOCAL])}")
        if _number(step, "s", name) != number:
            raise ScheduleError(f"{name}: the steps of a threadblock are not numbered 0, 1, 2, ...")
        spans = []
        for side in ("src", "dst"):
            start = _number(step, f"{side}off", name, 0)
            if count < 0 or count and not 0 <= start <= MOST_SLOTS - count:
                raise ScheduleError(f"{name}: a step has {count} chunks from {start}; at most "
                                    f"{MOST_SLOTS:,} are supported")
            spans.append(Span(step.get(f"{side}buf", "i"), start, start + count))
        waits = _number(step, "depid", name, -1), _number(step, "deps", name, -1)
        steps.append(FileStep(kind, spans[0], spans[1], waits))
    return Threadblock(_number(tb, "send", name, -1), _number(tb, "recv", name, -1),
                       _number(tb, "chan", name, 0), steps)


def _places(collective: str, in_place: bool) -> Callable[[int, Span], Span]:
    """Return the slots of MSCCL's buffers on a rank."""
    def place(rank: int, span: Span) -> Span:
        if span.buffer == "s":
            return span._replace(buffer=TMP)
        if span.buffer not in ("i", "o"):
            raise ScheduleError(f"unknown buffer {span.buffer!r}; use i, o or s")
        if not in_place:
            return span._replace(buffer=IN if span.buffer == "i" else OUT)
        shift = rank if collective == "allgather" and span.buffer == "i" else 0
        return Span(OUT, span.start + shift, span.stop + shift)
    return place


def _initial_steps(collective: str, chunks: int, in_place: bool) -> Callable[[int], Round]:
    """Return a rank's first steps, which copy its input to an in-place output."""
    if not in_place:
        return lambda rank: ()
    if collective == "allreduce":
        return lambda rank: (copy(Span(OUT, 0, chunks), Span(IN, 0, chunks)),)
    if collective == "allgather":
        return lambda rank: (copy(Span(OUT, rank, rank + 1), Span(IN, 0, 1)),)
    raise ScheduleError(f"{collective} in place is not supported; write it with inplace=0")


class LevelledHalf(NamedTuple):
    """Half of a step with its level, its steps and its dependencies in the file.

    ``mark`` identifies a message, the same on both ranks; local steps have none.
    """

    half: Half
    level: int
    mark: tuple[int, int, int, int] | None
    steps: Round
    waits: set[Half]


def _aliased_slots(collective: str, rank: int, span: Span) -> Iterator[tuple[str, int]]:
    """Yield the slots of a span, and the input slots that share their memory in place."""
    for slot in range(span.start, span.stop):
        yield span.buffer, slot
        if span.buffer == OUT:
            same = {"same": range(slot, slot + 1), "own": range(slot - rank, slot - rank + 1),
                    "front": range(rank + 1)}
            yield from ((IN, n) for n in same.get(COLLECTIVES[collective].in_place, ()))


def _rounds(halves: list[LevelledHalf], start: Round,
            shared: Callable[[Span], Iterator[tuple[str, int]]]
            ) -> tuple[tuple[Round, ...], Waits]:
    """Return a rank's rounds, one per half, and their dependencies."""
    first = 1 if start else 0
    order = sorted(halves, key=lambda each: (each.level, not each.half[3], each.mark or (),
                                             each.half))
    number = {each.half: n for n, each in enumerate(order, first)}
    after: list[tuple[int, ...]] = [()] * first
    #: For each round the earlier rounds in the file, as bits; and its dependencies here.
    past: list[int] = [0] * first
    #: Sends that have read a slot since its last write, also in place.
    reading: dict[tuple[str, int], list[int]] = {}
    for each in order:
        known, wanted = 0, set()
        for before in (number[half] for half in each.waits):
            known |= past[before] | 1 << before
            # Instead of the end of a send: the dependencies of the send.
            wanted |= set(after[before]) if order[before - first].half[3] else {before}
        for step in each.steps:
            for span in step.spans:
                for slot in shared(span):
                    if each.half[3]:
                        reading.setdefault(slot, []).append(number[each.half])
                    else:
                        wanted |= {n for n in reading.get(slot, ()) if known >> n & 1}
        after.append(tuple(sorted(wanted)) or tuple(range(first)))
        past.append(known)
    return ((start,) * first + tuple(each.steps for each in order)), tuple(after)


def _assign_levels(blocks: list[list[Threadblock]], place: Callable[[int, Span], Span], spare: int,
                   name: str) -> list[list[LevelledHalf]]:
    """Return the messages and local steps of every rank, with their levels."""
    waits: dict[Half, set[Half]] = {}
    queues: dict[tuple[int, int, int], tuple[list[Half], list[Half]]] = {}
    for rank, threadblocks in enumerate(blocks):
        for t, tb in enumerate(threadblocks):
            last: Half | None = None
            for n, step in enumerate(tb.steps):
                receives, _, _, sends = KINDS.get(step.kind, (False,) * 4)
                halves = [(rank, t, n, way) for way, does in ((False, receives or not sends),
                                                              (True, sends)) if does]
                for half in halves:
                    waits[half] = set() if last is None else {last}
                    last = half
                if step.waits[0] >= 0:
                    waits[halves[0]].add(_last(blocks, rank, step.waits, name))
                for half in halves:
                    if half[3]:
                        queues.setdefault((rank, tb.to, tb.channel), ([], []))[0].append(half)
                    elif receives:
                        queues.setdefault((tb.frm, rank, tb.channel), ([], []))[1].append(half)
    pairs: dict[Half, tuple[Half, Any]] = {}
    for (sender, receiver, channel), (sent, received) in queues.items():
        if len(sent) != len(received):
            raise ScheduleError(f"{name}: rank {sender} sends {len(sent)} messages to {receiver} "
                                f"on channel {channel}, which receives {len(received)}")
        for number, (one, other) in enumerate(zip(sent, received)):
            pairs[other] = one, (sender, receiver, channel, number)
            pairs[one] = one, (sender, receiver, channel, number)
    level = _levels(waits, pairs, name)
    found: list[list[LevelledHalf]] = [[] for _ in blocks]
    for half, before in waits.items():
        rank, t, n, sends = half
        steps = tuple(_half_steps(blocks[rank][t], n, sends, partial(place, rank), spare + t))
        mark = pairs[half][1] if half in pairs else None
        found[rank].append(LevelledHalf(half, level[half], mark, steps, before))
    return found


def _last(blocks: list[list[Threadblock]], rank: int, waits: tuple[int, int], name: str) -> Half:
    """Return the last half of a step."""
    t, n = waits
    if t >= len(blocks[rank]) or not 0 <= n < len(blocks[rank][t].steps):
        raise ScheduleError(f"{name}: rank {rank} waits for step {n} of threadblock {t}, which "
                            "does not exist")
    sends = KINDS.get(blocks[rank][t].steps[n].kind, (False,) * 4)[3]
    return rank, t, n, sends


def _levels(waits: dict[Half, set[Half]], pairs: dict[Half, tuple[Half, Any]],
            name: str) -> dict[Half, int]:
    """Return levels above all dependencies, the same for both ends of a message."""
    def one(half: Half) -> Half:
        return pairs[half][0] if half in pairs else half

    after: dict[Half, list[tuple[Half, int]]] = {one(half): [] for half in waits}
    for half, earlier in waits.items():
        for before in earlier:
            # A step after a send may be in the send's level, because the content exists before
            # the round; two sends may not.
            after[one(before)].append((one(half), 0 if before[3] and not half[3] else 1))
    level = dict.fromkeys(after, 0)
    late = list(after)
    while late:
        half = late.pop()
        for other, apart in after[half]:
            if level[other] < level[half] + apart:
                level[other] = level[half] + apart
                if level[other] > len(after):
                    rank, t, n, _ = other
                    raise ScheduleError(f"{name}: steps wait for each other: rank {rank} "
                                        f"threadblock {t} step {n}")
                late.append(other)
    return {half: level[one(half)] for half in waits}


def _half_steps(tb: Threadblock, n: int, sends: bool, place: Callable[[Span], Span],
                spare: int) -> Iterator[Step]:
    """Return the steps of a half."""
    kind, source, into, _ = tb.steps[n]
    receives, reduces, stores, both = KINDS.get(kind, (False,) * 4)
    if kind == "cpy":
        yield copy(place(into), place(source))
    elif kind == "re":
        yield reduce(place(into), place(source))
    elif sends:
        kept = place(source if not receives else into) if stores or not receives else (
            Span(TMP, spare, spare + 1))
        yield send(tb.to, kept)
    elif reduces and stores and place(source) == place(into):
        yield recv(tb.frm, place(into), reduce=LEFT)
    elif receives:
        kept = place(into) if stores else Span(TMP, spare, spare + 1)
        yield recv(tb.frm, kept)
        if reduces:
            yield reduce(kept, place(source))


def _scratch_keys(halves: list[list[LevelledHalf]], collective: str, size: int
                  ) -> dict[tuple[int, int], int]:
    """Return the first block in each slot of scratch."""
    keys: dict[tuple[int, int], int] = {}

    def key(rank: int, buffer: str, slot: int) -> int | None:
        if buffer == TMP:
            return keys.get((rank, slot))
        if collective == "allgather" and buffer == IN:
            return rank
        return rank if collective == "reduce_scatter" and buffer == OUT else slot

    levels: dict[int, list[LevelledHalf]] = {}
    for each in (each for rank in halves for each in rank):
        levels.setdefault(each.level, []).append(each)
    for _, held in sorted(levels.items()):
        sent = {each.mark: (each.half[0], each.steps[0]) for each in held if each.half[3]}
        for each in held:
            rank = each.half[0]
            for step in each.steps:
                if step.kind == SEND:
                    continue
                frm, spans = ((sent[each.mark][0], sent[each.mark][1].spans) if step.kind == RECV
                              else (rank, step.source))
                into, source = step.spans[0], spans[0]
                for offset in range(into.stop - into.start):
                    block = key(frm, source.buffer, source.start + offset)
                    if into.buffer == TMP and block is not None:
                        keys.setdefault((rank, into.start + offset), block)
    return keys
