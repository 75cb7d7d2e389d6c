"""Proof that a schedule implements its collective, for all block sizes.

The programs of all ranks are run on symbols. A symbol is a contribution (block, element,
rank), or the combination of two symbols, so a result carries its complete history: which
contributions it holds, how often, in which order and association. Messages are matched
with zero buffering: a send completes only when its receive is posted. Proved are

* every output block contains each required contribution exactly once - in rank order, for
  operators that do not commute - and other memory is unchanged;
* each send matches one receive of the same blocks, in order, and no message is left;
* no deadlock, even when every send is synchronous;
* no step touches memory that a message of the same round, or another segment, may be
  using; scratch stays in bounds;
* the numbers of rounds and of sent blocks equal the closed form, if there is one.

There are two proofs: :mod:`hpccoll.proof.slots` proves the programs as written, on slots, for every
size of every block, in place and not; :mod:`hpccoll.proof.elements` proves the lowered programs,
for the samples of :mod:`hpccoll.proof.cases`, in segments as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.errors import ProofError
from hpccoll.ir.collectives import Collective
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.proof.building import programs_of
from hpccoll.proof.cases import BlockSizes, cases, lower_all
from hpccoll.proof.elements import prove_segments as prove_segments
from hpccoll.proof.result import Proof
from hpccoll.proof.slots import prove_slots

__all__ = ["Proof", "verify"]


def verify(schedule: Schedule, collective: Collective | None = None, *,
           commutative: bool = True, sizes: BlockSizes | None = None) -> Proof:
    """Prove a schedule for all block sizes, and its lowered form for a sample.

    Args:
        schedule: to prove.
        collective: its specification; the schedule's own collective if omitted.
        commutative: ``False`` requires rank order of every reduction.
        sizes: block sizes to add to the sample.

    Raises:
        ProofError: with the rank, round and step of the error.
    """
    collective = collective or schedule.collective
    programs = programs_of(schedule)
    proof = prove_slots(schedule, collective, programs)
    proofs = [proof]
    if collective.in_place:
        proofs.append(prove_slots(schedule, collective, programs, in_place=True))
    sample = cases(schedule, collective) + ([] if sizes is None else [sizes])
    proofs += [prove(schedule, collective, case, programs) for case in sample]
    proof = proof._replace(
        rank_order=all(p.rank_order for p in proofs),
        replicas_identical=all(p.replicas_identical for p in proofs))
    for what, claimed, proved in (("rounds", schedule.rounds, proof.rounds),
                                  ("blocks sent by the busiest rank", schedule.sent, proof.sent)):
        if claimed is not None and claimed != proved:
            raise ProofError(f"has {proved} {what}, the closed form gives {claimed}",
                             schedule=schedule.title)
    if not commutative and not proof.rank_order:
        raise ProofError("contributions are not combined in rank order, so non-commutative "
                         "operators give wrong results", schedule=schedule.title)
    return proof


def prove(schedule: Schedule, collective: Collective, case: BlockSizes,
          programs: Sequence[Program] | None = None) -> Proof:
    """Prove the lowered form of a schedule for one case; see :func:`verify`."""
    programs = programs_of(schedule) if programs is None else programs
    return prove_segments(schedule, collective, case, [
        lower_all(schedule, collective, rank, case, program)
        for rank, program in enumerate(programs)])
