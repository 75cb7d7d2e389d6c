"""How strong is the proof? Mutants of lowered programs, judged by proof and by running them.

A mutant is one rank's lowered program (or two ranks' programs, for a message and its partner)
with one small change. :func:`hpccoll.proof.verifier.prove_segments` gives a verdict on it, and
:mod:`support.brute_force` another one, by running it. The proof may neither accept a wrong
mutant nor reject a right one.

    PYTHONPATH=.:tests python -m support.mutate [most ranks [most mutants of a schedule]]

judges the mutants of every algorithm of the table, and of some with lanes and with operations of
the network (:mod:`support.extra_schedules`), in one process per core, and prints a table.
All mutants up to 5 ranks are 1.7 million, which takes 50 minutes of one core; 100 of each schedule
take a few minutes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import chain, islice
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase, Segment
from hpccoll.ir.in_network import InNetwork, Peer, in_network
from hpccoll.ir.order import Waits
from hpccoll.ir.schedule import RECV, SEND, Schedule
from hpccoll.proof.cases import BlockSizes, cases, lower_all
from hpccoll.proof.verifier import prove_segments
from hpccoll.testing import every
from support.brute_force import BruteForce, Verdict
from support.extra_schedules import extra_schedules
from support.mutations.places import carried

#: The segments of every rank.
Programs = list[list[Segment]]
Step = TypeVar("Step")
#: Tasks for the processes, for each number of ranks.
PARTS = 50


class Mutant(NamedTuple):
    """What was changed, and the programs of all ranks after the change."""

    kind: str
    where: str
    programs: Programs


class Findings(NamedTuple):
    """The outcome of a suite."""

    mutants: Counter[str]
    wrong: Counter[str]
    disagreements: list[str]

    def __str__(self) -> str:
        lines = [f"{kind:14} {count:8} mutants {self.wrong[kind]:8} wrong"
                 for kind, count in sorted(self.mutants.items())]
        return "\n".join([*lines, f"{'all':14} {self.mutants.total():8} mutants "
                                  f"{self.wrong.total():8} wrong",
                          f"{len(self.disagreements)} on which proof and truth disagree",
                          *self.disagreements])

    def merge(self, other: Findings) -> None:
        """Add the findings of another suite."""
        self.mutants.update(other.mutants)
        self.wrong.update(other.wrong)
        self.disagreements.extend(other.disagreements)


def suite(sizes: Sequence[int], most: int | None = None, roots: range | None = None,
          part: slice = slice(None)) -> Findings:
    """Judge the mutants of every algorithm of the table, and of what is beyond it."""
    findings = Findings(Counter(), Counter(), [])
    for size in sizes:
        table = [schedule for _, schedule in every(size, roots)]
        for number, schedule in list(enumerate([*table, *extra_schedules(size, roots)]))[part]:
            picked = chosen(schedule)
            for case in [picked[number % len(picked)]] if most else picked:
                judge(schedule, case, findings, most)
    return findings


def main(ranks: int = 5, most: int | None = None) -> Findings:
    """Judge mutants for 1 to ``ranks`` ranks in one process per core; print the progress."""
    findings = Findings(Counter(), Counter(), [])
    # Fresh processes, each with small parts: some algorithms have a hundred times more mutants.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(suite, [size], most, None, slice(first, None, PARTS))
                 for size in range(1, ranks + 1) for first in range(PARTS)]
        for done, future in enumerate(as_completed(parts), 1):
            findings.merge(future.result())
            print(f"\r{done} of {len(parts)} parts, {findings.mutants.total()} mutants",
                  end="" if done < len(parts) else "\n", file=sys.stderr)
    return findings


def chosen(schedule: Schedule) -> list[BlockSizes]:
    """Choices of block sizes to mutate: one each, uneven, in segments, and in place."""
    every_case = list(cases(schedule, schedule.collective))
    picked = [every_case[0], *[c for c in every_case if c.segment or c.in_place]]
    return picked + [c for c in every_case[1:] if not (c.segment or c.in_place)][-1:]


def judge(schedule: Schedule, case: BlockSizes, findings: Findings,
          most: int | None = None) -> None:
    """Compare proof and truth on the mutants of one schedule and choice of block sizes."""
    programs = [lower_all(schedule, schedule.collective, rank, case)
                for rank in range(schedule.size)]
    truth = BruteForce(schedule, case)
    total = sum(1 for _ in mutants(programs)) if most else 0
    stride = max(-(-total // most), 1) if most else 1
    # Another start each time, so that the sample does not prefer the first ranks.
    picked = islice(mutants(programs), findings.mutants.total() % stride, None, stride)
    for mutant in chain([Mutant("unchanged", "", programs)], picked):
        proved, true = proof(schedule, case, mutant.programs), truth.verdict(mutant.programs)
        findings.mutants[mutant.kind] += 1
        findings.wrong[mutant.kind] += not true.right
        if proved[:3] != true[:3] if true.right else proved.right:
            findings.disagreements.append(
                f"{schedule.title}, {mutant.kind} {mutant.where}, "
                f"{'in place' if case.in_place else 'apart'}: proof {proved}, truth {true}")


def proof(schedule: Schedule, case: BlockSizes, programs: Programs) -> Verdict:
    """The proof's verdict on lowered programs."""
    try:
        proved = prove_segments(schedule, schedule.collective, case, programs)
    except ProofError as error:
        return Verdict(False, False, False, error.problem)
    return Verdict(True, proved.rank_order, proved.replicas_identical)


def mutants(programs: Programs) -> Iterator[Mutant]:
    """Every mutant of the programs of all ranks, one change each."""
    for rank, segments in enumerate(programs):
        for number, segment in enumerate(segments):
            for kind, where, phases in _programs(segment.program, rank, len(programs)):
                waits = carried(segment.program.waits, segment.program.phases, phases)
                yield Mutant(kind, f"rank {rank} segment {number} {where}", _put(
                    programs, rank, number, segment._replace(program=segment.program._replace(
                        phases=phases, waits=waits))))
            for place, waits in _waits(segment.program.waits):
                yield Mutant("hurry", f"rank {rank} segment {number} phase {place}", _put(
                    programs, rank, number, segment._replace(
                        program=segment.program._replace(waits=waits))))
            if number:
                swapped = _put(programs, rank, number, segments[number - 1])
                yield Mutant("retag", f"rank {rank} segments {number - 1}, {number}",
                             _put(swapped, rank, number - 1, segment))
                yield Mutant("shift", f"rank {rank} segment {number}", _put(
                    programs, rank, number, segment._replace(shift=segment.shift + 1)))
    yield from _pairs(programs)


def _waits(waits: Waits) -> Iterator[tuple[int, Waits]]:
    """A phase waits for one fewer."""
    for place, named in enumerate(waits):
        for other in named:
            yield place, (*waits[:place], tuple(each for each in named if each != other),
                          *waits[place + 1:])


def _put(programs: Programs, rank: int, number: int, segment: Segment) -> Programs:
    segments = [*programs[rank][:number], segment, *programs[rank][number + 1:]]
    return [*programs[:rank], segments, *programs[rank + 1:]]


def _programs(program: LoweredProgram, rank: int, size: int) -> Iterator[tuple[str, str, tuple]]:
    """(kind, where, phases) of every mutant of one lowered program."""
    phases = program.phases
    for buffer in (IN, OUT, TMP):
        yield "scribble", f"end {buffer}", (*phases, Phase((), (), (
            Local(Extent(buffer, 0, 1), Extent(buffer, 1, 1)),)))
    for i, phase in enumerate(phases):
        rest = phases[:i], phases[i + 1:]
        here = f"phase {i}"
        yield "drop", here, rest[0] + rest[1]
        yield "duplicate", here, (*rest[0], phase, phase, *rest[1])
        if len(phase.messages) > 1:
            first, *others = phase.messages
            yield "split", here, (*rest[0], Phase(phase.before, (first,), ()),
                                  Phase((), tuple(others), phase.after), *rest[1])
        if i:
            last, rest = phases[i - 1], (phases[:i - 1], phases[i + 1:])
            yield "swap", here, (*rest[0], phase, last, *rest[1])
            yield "merge", here, (*rest[0], Phase(
                last.before + phase.before, last.messages + phase.messages,
                last.after + phase.after), *rest[1])
            rest = phases[:i], phases[i + 1:]
        for kind, where, steps in _locals(phase.before):
            yield kind, f"{here} before {where}", (
                *rest[0], phase._replace(before=steps), *rest[1])
        for kind, where, messages in _messages(phase.messages, rank, size):
            yield kind, f"{here} messages {where}", (
                *rest[0], phase._replace(messages=messages), *rest[1])
        for kind, where, steps in _locals(phase.after):
            yield kind, f"{here} after {where}", (
                *rest[0], phase._replace(after=steps), *rest[1])


def _steps(steps: Sequence[Step], change: Callable[[Step], Iterator[tuple[str, tuple[Step, ...]]]]
           ) -> Iterator[tuple[str, str, tuple[Step, ...]]]:
    for j, step in enumerate(steps):
        yield "drop", f"{j} '{step}'", (*steps[:j], *steps[j + 1:])
        for kind, changed in (("duplicate", (step, step)), *change(step)):
            yield kind, f"{j} '{step}'", (*steps[:j], *changed, *steps[j + 1:])
        if j:
            yield "reorder", f"{j} '{step}'", (*steps[:j - 1], step, steps[j - 1], *steps[j + 1:])


def _messages(steps: Sequence[Message], rank: int, size: int
              ) -> Iterator[tuple[str, str, tuple[Message, ...]]]:
    def change(step: Message) -> Iterator[tuple[str, tuple[Message, ...]]]:
        for peer in _others(step.peer, size):
            yield "redirect", (step._replace(peer=peer),)
        yield "turn", (step._replace(kind=SEND if step.kind == RECV else RECV),)
        for kind, extent in _extents(step.extent):
            yield kind, (step._replace(extent=extent),)
    return _steps(steps, change)


def _others(peer: Peer, size: int) -> set[Peer]:
    others: set[Peer]
    if not isinstance(peer, InNetwork):
        others = {(peer + 1) % size, (peer + 2) % size, size}
        return others - {peer}
    sources, sinks = list(peer.senders), list(peer.receivers)
    others = {peer.backwards, in_network(sources[1:], sinks), in_network(sources, sinks[:-1]),
              in_network([*sources, size], sinks), sources[0]}
    return others - {peer}


def _locals(steps: Sequence[Local]) -> Iterator[tuple[str, str, tuple[Local, ...]]]:
    def change(step: Local) -> Iterator[tuple[str, tuple[Local, ...]]]:
        into, left, right = step
        if right is not None:
            yield "swap operands", (Local(into, right, left),)
            yield "double reduce", (step, Local(into, left, into))
            yield "forget", (Local(into, left),)
            yield "forget", (Local(into, right),)
        for field in ("into", "left", "right"):
            for kind, extent in _extents(getattr(step, field)) if getattr(step, field) else ():
                yield kind, (step._replace(**{field: extent}),)
        for by in (-1, 1):
            yield "resize", (Local(_longer(into, by), _longer(left, by),
                                   right and _longer(right, by)),)
    return _steps(steps, change)


def _longer(extent: Extent, by: int) -> Extent:
    return extent._replace(count=extent.count + by)


def _extents(extent: Extent) -> Iterator[tuple[str, Extent]]:
    buffer, offset, count = extent
    for other in {IN, OUT, TMP} - {buffer}:
        yield "alias", Extent(other, offset, count)
    for by in (-1, 1):
        yield "shift", Extent(buffer, offset + by, count)
        if count + by >= 0:
            yield "shrink" if by < 0 else "grow", Extent(buffer, offset, count + by)


def _pairs(programs: Programs) -> Iterator[Mutant]:
    """Mutants in which a message and its partner change alike: they still fit together."""
    changes: tuple[tuple[str, Callable[[Extent], Extent | None]], ...] = (
        ("drop both", lambda e: None),
        ("shrink both", lambda e: e._replace(count=max(e.count - 1, 0))),
        ("shift both", lambda e: e._replace(offset=e.offset + 1)))
    #: Where the messages of two ranks are: phase and number of each, by source, sink and segment.
    sites: dict[tuple[int, int, int], dict[str, list[tuple[int, int]]]] = {}
    for rank, segments in enumerate(programs):
        for number, segment in enumerate(segments):
            for i, phase in enumerate(segment.program.phases):
                for j, (kind, peer, _) in enumerate(phase.messages):
                    if isinstance(peer, InNetwork):
                        continue
                    key = (rank, peer, number) if kind == SEND else (peer, rank, number)
                    sites.setdefault(key, {SEND: [], RECV: []})[kind].append((i, j))
    for (source, sink, number), ends in sites.items():
        for out, into in zip(ends[SEND], ends[RECV]):
            for kind, change in changes:
                changed = _edit(programs, source, number, *out, change)
                yield Mutant(kind, f"{source} to {sink} segment {number} phase {out[0]}",
                             _edit(changed, sink, number, *into, change))


def _edit(programs: Programs, rank: int, number: int, i: int, j: int,
          change: Callable[[Extent], Extent | None]) -> Programs:
    segment = programs[rank][number]
    phase = segment.program.phases[i]
    message, extent = phase.messages[j], change(phase.messages[j].extent)
    messages = (*phase.messages[:j], *([message._replace(extent=extent)] if extent else ()),
                *phase.messages[j + 1:])
    phases = (*segment.program.phases[:i], phase._replace(messages=messages),
              *segment.program.phases[i + 1:])
    return _put(programs, rank, number, segment._replace(
        program=segment.program._replace(phases=phases)))


if __name__ == "__main__":
    outcome = main(*map(int, sys.argv[1:]))
    print(outcome)
    sys.exit(bool(outcome.disagreements))
