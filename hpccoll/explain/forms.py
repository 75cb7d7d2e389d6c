"""Exports of a schedule: plain data, and MSCCL's XML, which libraries run on GPUs.

In MSCCL's form every rank has a threadblock for local steps, one for each peer that it sends to,
and one for each that it receives from. The first collects the ends of a round, a ``nop`` for each,
and all messages of the next round wait for it. Chunks are sent one by one. Slots that are both sent
and received into in one round, where threadblocks have no order, are sent from a copy.
The format: :mod:`hpccoll.algorithms.msccl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.explain.replay import facts, ranks_of, timeline
from hpccoll.explain.text import WANTS
from hpccoll.ir.collectives import IN, OUT, TMP, slot_keys
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import COPY, RECV, SEND, Schedule, Span, Step
from hpccoll.proof.verifier import verify

#: MSCCL's names of buffers and collectives.
BUFFERS = {IN: "i", OUT: "o", TMP: "s"}
NAMES = ("allreduce", "allgather", "reduce_scatter", "alltoall")


def as_json(schedule: Schedule) -> dict:
    """Return a schedule as plain data, unchanged by a round trip through :mod:`json`.

    Programs are complete, so a reader can rebuild every step.
    """
    line = timeline(schedule)
    costs = facts(schedule, line)
    programs = zip(schedule.programs(), line.finish)
    return {
        "format": 1,
        "title": schedule.title,
        "collective": schedule.collective.name,
        "algorithm": schedule.algorithm,
        "size": schedule.size,
        "root": schedule.root if schedule.collective.rooted else None,
        "nblocks": schedule.nblocks,
        "uniform": schedule.uniform,
        "params": dict(schedule.params),
        "topology": str(schedule.topology) if schedule.topology else None,
        "digest": schedule.digest,
        "wanted": WANTS[schedule.collective.name].format(root=schedule.root),
        "facts": {**costs._asdict(), "proof": costs.proof and {
            **costs.proof._asdict(), "network": list(costs.proof.network)}},
        "messages": [{"round": m.round, "from": m.sender, "to": m.receiver, "reduce": m.side,
                      "blocks": [v and v.block for v in m.values],
                      "contributions": [v and ranks_of(v.ranks) for v in m.values]}
                     for m in line.messages],
        **({"operations": [{"round": o.round, "sources": list(o.network.senders),
                            "sinks": list(o.network.receivers),
                            "blocks": [v and v.block for v in o.values],
                            "contributions": [v and ranks_of(v.ranks) for v in o.values]}
                           for o in line.operations]} if line.operations else {}),
        "programs": [{"rank": rank, "scratch": list(program.scratch),
                      "rounds": [[_step(s) for s in steps] for steps in program.rounds],
                      "finish": finish,
                      **({"after": list(map(list, program.after))} if program.after else {})}
                     for rank, (program, finish) in enumerate(programs)],
    }


def _step(step: Step) -> dict:
    peer = step.peer if not isinstance(step.peer, InNetwork) else {
        "sources": list(step.peer.senders), "sinks": list(step.peer.receivers)}
    return {"kind": step.kind, "peer": peer, "side": step.side,
            "spans": [list(s) for s in step.spans], "source": [list(s) for s in step.source]}


def as_msccl(schedule: Schedule) -> str:
    """Return a schedule as MSCCL's XML; lanes are merged into one, which is proved.

    Raises:
        ScheduleError: a collective that MSCCL does not have, a message without blocks or with a
            network operation, or rounds of lanes that deadlock one after the other.
    """
    name = schedule.collective.name
    if name not in NAMES:
        raise ScheduleError(f"{schedule.title}: MSCCL does not support {name}, only "
                            f"{', '.join(NAMES)}")
    root = ElementTree.Element("algo", {
        "name": schedule.algorithm, "proto": "Simple", "nchannels": "1",
        "nchunksperloop": str(schedule.nblocks if schedule.collective.payload == "vector"
                              else schedule.size),
        "ngpus": str(schedule.size), "coll": name, "inplace": "0"})
    programs = [program._replace(after=()) for program in schedule.programs()]
    if any(program.after for program in schedule.programs()):
        try:
            verify(replace(schedule, build=programs.__getitem__, rounds=None))
        except ProofError as error:
            raise ScheduleError(f"{schedule.title}: cannot be written as MSCCL's XML: hpccoll "
                                "writes the lanes of a rank one after the other, and in that order "
                                "these deadlock") from error
    for rank, program in enumerate(programs):
        keys = slot_keys(schedule.collective, rank, schedule.size, schedule.root, schedule.nblocks)
        gpu = ElementTree.SubElement(root, "gpu", {
            "id": str(rank), "i_chunks": str(len(keys.get(IN, ()))),
            "o_chunks": str(len(keys.get(OUT, ()))), "s_chunks": str(len(program.scratch))})
        writer = _Writer(gpu, schedule, rank, len(program.scratch))
        writer.write(program.rounds)
        gpu.set("s_chunks", str(len(program.scratch) + writer.copies))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


class _Writer:
    """Threadblocks of one rank."""

    def __init__(self, gpu: ElementTree.Element, schedule: Schedule, rank: int, scratch: int):
        self.gpu, self.schedule, self.rank, self.scratch = gpu, schedule, rank, scratch
        #: Additional slots of scratch for copies.
        self.copies = 0
        self.blocks: dict[tuple[int, int], ElementTree.Element] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.main = self.block(-1, -1)

    def block(self, to: int, frm: int) -> ElementTree.Element:
        """Return the threadblock that sends to one rank, or receives from one, or neither."""
        if (to, frm) not in self.blocks:
            self.numbers[to, frm] = len(self.blocks)
            self.blocks[to, frm] = ElementTree.SubElement(self.gpu, "tb", {
                "id": str(len(self.blocks)), "send": str(to), "recv": str(frm), "chan": "0"})
        return self.blocks[to, frm]

    def write(self, rounds: Sequence[Sequence[Step]]) -> None:
        """Write all rounds, one after the other."""
        for number, steps in enumerate(rounds):
            if any(step.kind in (SEND, RECV) and not step.spans for step in steps):
                raise ScheduleError(f"{self.schedule.title}, rank {self.rank}, round {number}: "
                                    "MSCCL does not support messages without blocks")
            moved = self.copy_in_place_slots(steps)
            after = len(self.main) - 1
            busy: dict[tuple[int, int], None] = {}
            #: Last receive into each slot: threadblock, and step of it.
            arrived: dict[Span, tuple[int, int]] = {}
            for step in steps:
                if step.kind in (SEND, RECV):
                    if isinstance(step.peer, InNetwork):
                        raise ScheduleError(f"{self.schedule.title}, rank {self.rank}, round "
                                            f"{number}: MSCCL does not support messages of several "
                                            "ranks")
                    ends = (step.peer, -1) if step.kind == SEND else (-1, step.peer)
                    busy[ends] = None
                    for span in step.spans:
                        for slot in range(span.start, span.stop):
                            here = Span(span.buffer, slot, slot + 1)
                            here = moved.get(here, here) if step.kind == SEND else here
                            kind = "s" if step.kind == SEND else "rrc" if step.side else "r"
                            # Threadblocks reduce into one slot one after the other.
                            waits = arrived.get(here, (0, after)) if kind == "rrc" else (0, after)
                            self.step(self.block(*ends), kind, here, here, *waits)
                            if step.kind == RECV:
                                arrived[here] = self.numbers[ends], len(self.blocks[ends]) - 1
            for ends in busy:
                self.step(self.main, "nop", None, None, self.numbers[ends],
                          len(self.blocks[ends]) - 1)
            for step in steps:
                if step.kind not in (SEND, RECV):
                    self.step(self.main, "cpy" if step.kind == COPY else "re", step.source[0],
                              step.spans[0], -1, -1)

    def step(self, block: ElementTree.Element, kind: str, source: Span | None, into: Span | None,
             waits: int, step: int) -> None:
        if step < 0:
            waits = -1
        element = ElementTree.SubElement(block, "step", {"s": str(len(block)), "type": kind})
        for side, span in (("src", source), ("dst", into)):
            element.set(f"{side}buf", BUFFERS[span.buffer] if span else "i")
            element.set(f"{side}off", str(span.start) if span else "-1")
        count = into.stop - into.start if into else 0
        for field, value in (("cnt", count), ("depid", waits), ("deps", step if waits >= 0 else -1),
                             ("hasdep", 1)):
            element.set(field, str(value))

    def copy_in_place_slots(self, steps: Sequence[Step]) -> dict[Span, Span]:
        """Copy slots that are both sent and received into; return the copy of each."""
        def slots(kind: str) -> dict[Span, None]:
            return dict.fromkeys(Span(span.buffer, slot, slot + 1) for step in steps
                                 if step.kind == kind for span in step.spans
                                 for slot in range(span.start, span.stop))

        received = slots(RECV)
        both = [slot for slot in slots(SEND) if slot in received]
        self.copies = max(self.copies, len(both))
        moved = {slot: Span(TMP, self.scratch + index, self.scratch + index + 1)
                 for index, slot in enumerate(both)}
        for slot, place in moved.items():
            self.step(self.main, "cpy", slot, place, -1, -1)
        return moved
