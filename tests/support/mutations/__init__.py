"""Changes to whole schedules, before lowering: one or two ranks' programs, one thing at a time.

:data:`MUTATIONS` has every kind: some are slips that people make, some are aimed at what a proof
might overlook - memory that is shared in one round, scratch of another size, blocks in another
order - and some do no harm, for a proof that rejects what is right is no good either. Each is a
function that draws a place and returns the changed programs, or ``None`` where it found none.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hpccoll.ir.schedule import COPY, RECV, Span
from support.mutations import memory, networks, rounds, steps, waits
from support.mutations.places import (
    Written,
    both_mutation,
    has_spans,
    is_local,
    is_message,
    receives,
    rounds_mutation,
    sends,
    step_mutation,
    through_network,
    wide,
)

#: Every kind, by its name.
MUTATIONS: dict[str, Callable[[Random, Written], Written | None]] = {
    # rounds
    "drop round": rounds_mutation(0, rounds.drop_round),
    "duplicate round": rounds_mutation(0, lambda d, held, i: held.insert(i, held[i])),
    "move round": rounds_mutation(0, rounds.move_round),
    "swap rounds": rounds_mutation(1, rounds.swap_rounds_at),
    "merge rounds": rounds_mutation(1, rounds.merge_rounds),
    "merge everywhere": rounds.merge_everywhere,
    "split round": rounds_mutation(0, rounds.split_round),
    "shuffle round": rounds_mutation(0, rounds.shuffle_round),
    "delay step": rounds_mutation(1, lambda d, held, i: rounds.move_step(d, held, i, i + 1)),
    "hurry step": rounds_mutation(1, lambda d, held, i: rounds.move_step(d, held, i + 1, i)),
    "move step": rounds_mutation(0, lambda d, held, i: rounds.move_step(
        d, held, i, d.randrange(len(held)))),
    "other rank's round": rounds.like_another_rank,
    "swap ranks": rounds.swap_ranks,
    # steps
    "drop step": step_mutation(bool, lambda *how: []),
    "duplicate step": step_mutation(bool, lambda draw, step, *how: [step, step]),
    "redirect": step_mutation(is_message, steps.redirect),
    "turn": step_mutation(is_message, steps.turn),
    "shift": step_mutation(has_spans, steps.one_span(steps.shifted)),
    "anywhere": step_mutation(has_spans, steps.one_span(steps.anywhere)),
    "elsewhere": step_mutation(has_spans, steps.one_span(steps.elsewhere)),
    "grow": step_mutation(has_spans, steps.one_span(steps.grown)),
    "shrink": step_mutation(has_spans, steps.one_span(steps.shrunk)),
    "shift source": step_mutation(is_local, steps.one_span(steps.shifted, "source")),
    "other source": step_mutation(is_local, steps.one_span(steps.elsewhere, "source")),
    "in for out": step_mutation(lambda s: is_local(s) or sends(s), steps.from_input),
    "backwards": step_mutation(is_local, steps.backwards),
    "name twice": step_mutation(lambda s: is_message(s) and s.spans, steps.twice),
    "permute": step_mutation(wide, steps.permuted),
    "two messages": step_mutation(wide, steps.in_two),
    "other side": step_mutation(lambda s: s.side, steps.other_side),
    "forget to reduce": step_mutation(lambda s: s.side, steps.plain),
    "reduce too": step_mutation(lambda s: s.kind in (RECV, COPY) and not s.side and s.spans,
                                steps.reducing),
    "copy early": memory.early_copy,
    "swap memory": memory.swap_spans,
    # both ends of a message
    "drop both": both_mutation(lambda draw, spans: None),
    "shift both": both_mutation(lambda draw, spans: tuple(
        Span(s.buffer, s.start + 1, s.stop + 1) for s in spans)),
    "less of both": both_mutation(steps.fewer),
    "permute both": both_mutation(steps.reordered),
    # memory of one round, and scratch
    "receive into what is sent": memory.shared_memory(sends, receives),
    "receive into what is received": memory.shared_memory(receives, receives),
    "send what is received": memory.shared_memory(receives, sends),
    "other scratch": memory.scratch_mutation(memory.other_key),
    "swap scratch": memory.scratch_mutation(memory.swap_keys),
    "drop scratch": memory.scratch_mutation(memory.drop_key),
    "reuse scratch": memory.reuse,
    "detour": memory.detour(lambda draw, key, size: key),
    "detour of another size": memory.detour(lambda draw, key, size: draw.randrange(size)),
    # what rounds wait for
    "relax": waits.relax,
    "drop wait": waits.drop_wait,
    "add wait": waits.add_wait,
    "all at once": waits.all_at_once,
    "one by one": waits.one_by_one,
    # what the network does
    "other network": step_mutation(through_network, networks.other_network),
    "fewer sources": networks.everywhere(networks.fewer_sources),
    "fewer sinks": networks.everywhere(networks.fewer_sinks),
    "more sinks": networks.everywhere(networks.more_sinks),
    "spelt out": networks.spelt_out,
}
