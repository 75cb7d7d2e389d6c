"""Algorithms of MSCCL: its XML read into a schedule.

A file has, for every GPU (here: rank), threadblocks that run at the same time. A threadblock has
one rank that it sends to and one that it receives from, on a channel, and its steps run one after
the other: ``s`` send, ``r`` receive, ``cpy`` copy, ``re`` reduce, ``nop``, and the fused ``rcs``
(receive, store and send), ``rrc`` (receive and reduce), ``rrcs``, ``rrs`` (which stores nothing). A
step may wait for one of another threadblock (``depid``, ``deps``). Here every message gets a level,
the same on both sides, after all that either side waits for; a rank's rounds are its levels. What
waits for a send alone may be in its level.
Source of the format: microsoft/msccl-tools; Cowan et al., "MSCCLang", ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from xml.etree import ElementTree

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, Program, Schedule, Span, Step, copy, recv, reduce, send

#: MSCCL's names of collectives.
NAMES = {"allreduce": "allreduce", "allgather": "allgather", "alltoall": "alltoall",
         "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter"}
#: What fused steps consist of: whether they receive, reduce what arrives, store it, and send.
KINDS = {"s": (False, False, False, True), "r": (True, False, True, False),
         "rcs": (True, False, True, True), "rrc": (True, True, True, False),
         "rrcs": (True, True, True, True), "rrs": (True, True, False, True)}
LOCAL = ("cpy", "re", "nop")

#: A half of a step: rank, threadblock, number, and whether it is the sending half.
Half = tuple[int, int, int, bool]


class FileStep(NamedTuple):
    """A step as the file has it."""

    kind: str
    source: Span
    into: Span
    waits: tuple[int, int]


class Threadblock(NamedTuple):
    """A threadblock as the file has it: peers (-1 for none), channel, steps."""

    to: int
    frm: int
    channel: int
    steps: list[FileStep]


def read_msccl(text: str, name: str) -> Schedule:
    """Read MSCCL's XML; whether it is right is for :func:`hpccoll.verify` to say.

    Args:
        text: the XML.
        name: of the file, for messages.

    Raises:
        ScheduleError: no such file, more than a schedule can express, messages that do not meet,
            or steps that wait for each other so that no rounds can order them.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ScheduleError(f"{name}: no XML: {error}") from error
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
    steps = _levelled(blocks, place, spare, name)
    keys = _scratch_keys(steps, collective, size)
    vector = COLLECTIVES[collective].payload == "vector"
    before, after = _ends(collective, chunks, root.get("inplace") == "1", spare)
    programs = []
    for rank in range(size):
        rounds = [before(rank)] if before(rank) else []
        for level in sorted(steps[rank]):
            messages, local = steps[rank][level]
            # Between two ranks messages meet in order: of channels, then of the file.
            rounds.append((*(step for _, step in sorted(messages, key=lambda m: m[0])), *local))
        rounds += [after(rank)] if after(rank) else []
        used = max((span.stop for steps_ in rounds for step in steps_
                    for span in (*step.spans, *step.source) if span.buffer == TMP), default=0)
        programs.append(Program(tuple(rounds), tuple(keys.get((rank, slot), slot % max(chunks, 1))
                                                     for slot in range(used))))
    return Schedule(COLLECTIVES[collective], root.get("name") or name, size,
                    programs.__getitem__, nblocks=chunks if vector else 1,
                    uniform=not vector)


def _number(element: Any, field: str, name: str, default: int | None = None) -> int:
    value = element.get(field)
    try:
        return default if value is None and default is not None else int(value)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name}: <{element.tag}> has {field}={value!r}, expected a whole "
                            "number") from None


def _chunks(collective: str, gpu: Any, size: int, name: str) -> int:
    """Chunks of a vector; demands one chunk a block of all else."""
    given, wanted = _number(gpu, "i_chunks", name), _number(gpu, "o_chunks", name)
    if COLLECTIVES[collective].payload == "vector":
        return max(given, wanted)
    blocks = {"allgather": (1, size), "reduce_scatter": (size, 1), "alltoall": (size, size)}
    if given > blocks[collective][0] or wanted > blocks[collective][1]:
        raise ScheduleError(f"{name}: cuts a block of {collective} into several chunks "
                            f"(i_chunks={given}, o_chunks={wanted}), which a schedule cannot; "
                            "only vectors are cut")
    return size


def _threadblock(tb: Any, name: str) -> Threadblock:
    steps = []
    for number, step in enumerate(sorted(tb.iter("step"), key=lambda s: _number(s, "s", name))):
        kind, count = step.get("type", ""), _number(step, "cnt", name, 1)
        if kind not in KINDS and kind not in LOCAL:
            raise ScheduleError(f"{name}: unknown type of step {kind!r}; known are "
                                f"{', '.join([*KINDS, *LOCAL])}")
        if _number(step, "s", name) != number:
            raise ScheduleError(f"{name}: the steps of a threadblock are not numbered 0, 1, 2, ...")
        spans = []
        for side in ("src", "dst"):
            start = _number(step, f"{side}off", name, 0)
            spans.append(Span(step.get(f"{side}buf", "i"), start, start + count))
        waits = _number(step, "depid", name, -1), _number(step, "deps", name, -1)
        steps.append(FileStep(kind, spans[0], spans[1], waits))
    return Threadblock(_number(tb, "send", name, -1), _number(tb, "recv", name, -1),
                       _number(tb, "chan", name, 0), steps)


def _places(collective: str, in_place: bool) -> Callable[[int, Span], Span]:
    """Where a rank keeps MSCCL's buffers."""
    def place(rank: int, span: Span) -> Span:
        if span.buffer == "s":
            return span._replace(buffer=TMP)
        if span.buffer not in ("i", "o"):
            raise ScheduleError(f"unknown buffer {span.buffer!r}; known are i, o, s")
        if not in_place:
            return span._replace(buffer=IN if span.buffer == "i" else OUT)
        shift = rank if collective == "allgather" and span.buffer == "i" else 0
        return Span(OUT, span.start + shift, span.stop + shift)
    return place


def _ends(collective: str, chunks: int, in_place: bool, spare: int
          ) -> tuple[Callable[[int], tuple[Step, ...]], Callable[[int], tuple[Step, ...]]]:
    """Steps before and after: what the input in the place of the output takes."""
    def nothing(rank: int) -> tuple[Step, ...]:
        return ()

    if not in_place:
        return nothing, nothing
    if collective == "allreduce":
        return lambda rank: (copy(Span(OUT, 0, chunks), Span(IN, 0, chunks)),), nothing
    if collective == "allgather":
        return lambda rank: (copy(Span(OUT, rank, rank + 1), Span(IN, 0, 1)),), nothing
    raise ScheduleError(f"{collective} in place is not read; write it with inplace=0")


def _levelled(blocks: list[list[Threadblock]], place: Callable[[int, Span], Span], spare: int,
              name: str) -> list[dict[int, tuple[list[tuple[Any, Step]], list[Step]]]]:
    """Every rank's messages and local steps by level."""
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
    found: list[dict[int, tuple[list[tuple[Any, Step]], list[Step]]]] = [{} for _ in blocks]
    for half in waits:
        rank, t, n, sends = half
        tb = blocks[rank][t]
        here = found[rank].setdefault(level[half], ([], []))
        for message, written in _written(tb, n, sends, partial(place, rank), spare + t):
            if message:
                here[0].append((pairs[half][1], written))
            else:
                here[1].append(written)
    return found


def _last(blocks: list[list[Threadblock]], rank: int, waits: tuple[int, int], name: str) -> Half:
    """The half that ends a step."""
    t, n = waits
    if t >= len(blocks[rank]) or not 0 <= n < len(blocks[rank][t].steps):
        raise ScheduleError(f"{name}: rank {rank} waits for step {n} of threadblock {t}, which "
                            "is not there")
    sends = KINDS.get(blocks[rank][t].steps[n].kind, (False,) * 4)[3]
    return rank, t, n, sends


def _levels(waits: dict[Half, set[Half]], pairs: dict[Half, tuple[Half, Any]],
            name: str) -> dict[Half, int]:
    """Levels after all that is waited for, one for both ends of a message."""
    def one(half: Half) -> Half:
        return pairs[half][0] if half in pairs else half

    after: dict[Half, list[tuple[Half, int]]] = {one(half): [] for half in waits}
    for half, earlier in waits.items():
        for before in earlier:
            # What follows a send may go on in its round: a send has the content before the round.
            after[one(before)].append((one(half), 0 if before[3] else 1))
    level = dict.fromkeys(after, 0)
    late = list(after)
    while late:
        half = late.pop()
        for other, apart in after[half]:
            if level[other] < level[half] + apart:
                level[other] = level[half] + apart
                if level[other] > len(after):
                    rank, t, n, _ = other
                    raise ScheduleError(f"{name}: no rounds can order steps that wait for each "
                                        f"other; one is rank {rank} threadblock {t} step {n}")
                late.append(other)
    return {half: level[one(half)] for half in waits}


def _written(tb: Threadblock, n: int, sends: bool, place: Callable[[Span], Span],
             spare: int) -> Iterator[tuple[bool, Step]]:
    """The steps of a half, and whether they are messages."""
    kind, source, into, _ = tb.steps[n]
    receives, reduces, stores, both = KINDS.get(kind, (False,) * 4)
    if kind == "cpy":
        yield False, copy(place(into), place(source))
    elif kind == "re":
        yield False, reduce(place(into), place(source))
    elif sends:
        kept = place(source if not receives else into) if stores or not receives else (
            Span(TMP, spare, spare + 1))
        yield True, send(tb.to, kept)
    elif reduces and stores and place(source) == place(into):
        yield True, recv(tb.frm, place(into), reduce=LEFT)
    elif receives:
        kept = place(into) if stores else Span(TMP, spare, spare + 1)
        yield True, recv(tb.frm, kept)
        if reduces:
            yield False, reduce(kept, place(source))


def _scratch_keys(steps: list[dict[int, tuple[list[tuple[Any, Step]], list[Step]]]],
                  collective: str, size: int) -> dict[tuple[int, int], int]:
    """The block that each slot of scratch holds first, by what is sent and copied there."""
    keys: dict[tuple[int, int], int] = {}

    def key(rank: int, buffer: str, slot: int) -> int | None:
        if buffer == TMP:
            return keys.get((rank, slot))
        if collective == "allgather" and buffer == IN:
            return rank
        return rank if collective == "reduce_scatter" and buffer == OUT else slot

    for level in range(1 + max((max(found) for found in steps if found), default=-1)):
        sent = {mark: (rank, step) for rank, found in enumerate(steps)
                for mark, step in found.get(level, ([], []))[0] if step.kind == "send"}
        for rank, found in enumerate(steps):
            messages, local = found.get(level, ([], []))
            moves = [(rank, step.spans[0], *sent[mark]) for mark, step in messages
                     if step.kind == "recv"]
            moves += [(rank, step.spans[0], rank, step._replace(spans=step.source))
                      for step in local]
            for _, into, frm, source in moves:
                for offset in range(into.stop - into.start):
                    held = key(frm, source.spans[0].buffer, source.spans[0].start + offset)
                    if into.buffer == TMP and held is not None:
                        keys.setdefault((rank, into.start + offset), held)
    return keys
