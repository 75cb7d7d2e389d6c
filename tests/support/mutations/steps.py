"""Changes to single steps: their peers, their memory, their kind and side."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import COPY, LEFT, RECV, REDUCE, RIGHT, SEND, Span, Step
from support.mutations.places import Written, is_local, single_slots


def redirect(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(peer=draw.randrange(len(programs)))]


def turn(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(kind=RECV if step.kind == SEND else SEND, side="")]


def with_spans(step: Step, field: str, spans: tuple[Span, ...]) -> Step:
    return step._replace(spans=spans) if field == "spans" else step._replace(source=spans)


def one_span(change: Callable[[Random, Span], Span], field: str = "spans"
              ) -> Callable[[Random, Step, Written, int], list[Step]]:
    def mutate(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
        spans = list(step.spans if field == "spans" else step.source)
        i = draw.randrange(len(spans))
        spans[i] = change(draw, spans[i])
        return [with_spans(step, field, tuple(spans))]
    return mutate


def shifted(draw: Random, span: Span) -> Span:
    by = draw.choice((-1, 1))
    return Span(span.buffer, span.start + by, span.stop + by)


def anywhere(draw: Random, span: Span) -> Span:
    by = draw.randrange(8) - span.start
    return Span(span.buffer, span.start + by, span.stop + by)


def elsewhere(draw: Random, span: Span) -> Span:
    return span._replace(buffer=draw.choice((IN, OUT, TMP)))


def grown(draw: Random, span: Span) -> Span:
    return span._replace(stop=span.stop + 1)


def shrunk(draw: Random, span: Span) -> Span:
    return span._replace(stop=max(span.stop - 1, span.start))


def reordered(draw: Random, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    singles = single_slots(spans)
    return tuple(draw.sample(singles, len(singles)))


def fewer(draw: Random, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    singles = single_slots(spans)
    del singles[draw.randrange(len(singles)) if singles else 0:][:1]
    return tuple(singles)


def twice(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(spans=(*step.spans, draw.choice(step.spans)))]


def permuted(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(spans=reordered(draw, step.spans))]


def in_two(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    singles = single_slots(step.spans)
    cut = draw.randrange(1, len(singles))
    return [step._replace(spans=tuple(singles[:cut])), step._replace(spans=tuple(singles[cut:]))]


def other_side(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(side=LEFT if step.side == RIGHT else RIGHT)]


def plain(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(side="", kind=RECV if step.kind == RECV else COPY)]


def reducing(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(side=draw.choice((LEFT, RIGHT)),
                          kind=RECV if step.kind == RECV else REDUCE)]


def backwards(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    return [step._replace(spans=step.source, source=step.spans)]


def from_input(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    field, spans = ("source", step.source) if is_local(step) else ("spans", step.spans)
    return [with_spans(step, field, tuple(s._replace(buffer=IN if s.buffer == OUT else OUT)
                                     for s in spans))]
