"""How strong is the proof? Mutants of whole schedules, judged by proof and by running them.

Beside :mod:`support.mutate`, which changes what lowering made, here the schedule itself is
changed (:mod:`support.mutations`), once or twice, and :func:`hpccoll.verify` has to say
whether it is right, for all block sizes. Truth is :mod:`support.reference`, which runs the
mutant as it is written, for many random sizes, in place and not. Rank order, and whether all ranks
get the same bits, must agree as well. What the proof accepts is lowered, too, and run by
:mod:`support.brute_force`.

    PYTHONPATH=.:tests python -m support.mutate_schedules [mutants [seed [most ranks]]]

judges so many mutants of random schedules, in one process per core: of the table, and of those with
lanes and operations of the network (:mod:`support.extra_schedules`). 20,000 on up to 8
ranks take some ten minutes of two cores.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from random import Random

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, block_counts
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.wellformed import keys_of, program_of
from hpccoll.proof.cases import BlockSizes, lower_all
from hpccoll.proof.verifier import verify
from hpccoll.testing import layouts
from support import reference
from support.brute_force import BruteForce, Verdict
from support.extra_schedules import extra_schedules
from support.mutate import Findings
from support.mutations import MUTATIONS, Written

#: Choices of block sizes that a mutant is run on; more where proof and truth differ.
DRAWS, MORE_DRAWS = 6, 200
#: Part of them that are of schedules beyond the table.
BEYOND = .25
#: Mutants of one task of a process.
PART = 250


def main(mutants: int = 20_000, seed: int = 0, most_ranks: int = 8) -> Findings:
    """Judge mutants in one process per core; print the progress."""
    findings = Findings(Counter(), Counter(), [])
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(suite, min(PART, mutants - first), seed * 1_000_000 + first,
                             most_ranks) for first in range(0, mutants, PART)]
        for done, future in enumerate(as_completed(parts), 1):
            findings.merge(future.result())
            print(f"\r{done} of {len(parts)} parts", end="" if done < len(parts) else "\n",
                  file=sys.stderr)
    return findings


def suite(mutants: int, seed: int, most_ranks: int = 8) -> Findings:
    """Judge so many random mutants."""
    findings = Findings(Counter(), Counter(), [])
    draw = Random(seed)
    while findings.mutants.total() < mutants:
        made = any_schedule(draw, most_ranks)
        programs = [program_of(made, rank) for rank in range(made.size)]
        kinds, changed = [], programs
        for _ in range(draw.choice((1, 1, 1, 2))):
            kind = draw.choice(list(MUTATIONS))
            mutant = MUTATIONS[kind](draw, changed)
            if mutant is not None:
                changed = mutant
                kinds.append(kind)
        if kinds and changed != programs:
            judge(made, changed, " and ".join(kinds), findings, draw)
    return findings


def any_schedule(draw: Random, most_ranks: int) -> Schedule:
    """A random schedule of the table, or with lanes or operations of the network."""
    if draw.random() < BEYOND:
        return draw.choice(list(extra_schedules(draw.randint(2, most_ranks))))
    collective = draw.choice(list(ALGORITHMS))
    name = draw.choice(list(ALGORITHMS[collective]))
    entry, size = ALGORITHMS[collective][name], draw.randint(2, most_ranks)
    params = {key: draw.choice([value, *entry.variants[key].measured, *entry.variants[key].edges])
              for key, value in entry.params.items()}
    return schedule(collective, name, size,
                    root=draw.randrange(size) if COLLECTIVES[collective].rooted else 0,
                    topology=draw.choice(layouts(size)) if entry.hierarchical else None, **params)


def judge(made: Schedule, programs: Written, kind: str, findings: Findings, draw: Random) -> None:
    """Compare proof and truth on one mutant; add to ``findings``."""
    mutant = Schedule(made.collective, made.algorithm, made.size, programs.__getitem__, made.root,
                      made.nblocks, made.params, made.topology, made.uniform)
    try:
        proof = verify(mutant)
        proved = Verdict(True, proof.rank_order, proof.replicas_identical)
    except ScheduleError as error:
        proved = Verdict(False, False, False, str(error))
    true = truth(mutant, programs, draw, DRAWS)
    if not _agree(proved, true):  # the sizes at which it is wrong may be rare
        true = _both(true, truth(mutant, programs, draw, MORE_DRAWS))
    if proved.right and true.right:
        true = _both(true, lowered(mutant, draw))
    label = kind if " and " not in kind else "two changes"
    findings.mutants[label] += 1
    findings.wrong[label] += not true.right
    if not _agree(proved, true):
        findings.disagreements.append(f"{mutant.title}, {kind}: proof {proved}, truth {true}\n"
                                      f"{mutant}")


def _agree(proved: Verdict, true: Verdict) -> bool:
    return proved[:3] == true[:3] if true.right else not proved.right


def _both(one: Verdict, other: Verdict) -> Verdict:
    return Verdict(one.right and other.right, one.rank_order and other.rank_order,
                   one.identical and other.identical, one.why or other.why)


def truth(mutant: Schedule, programs: Written, draw: Random, draws: int) -> Verdict:
    """What holds of programs as they are written, on so many choices of block sizes."""
    verdict = Verdict(True)
    try:
        for rank in range(mutant.size):
            program_of(mutant, rank)
    except ScheduleError as error:
        return Verdict(False, False, False, str(error))
    for sizes in _sizes(mutant, draw, draws):
        for in_place in (False, True) if mutant.collective.in_place else (False,):
            found = reference.run(mutant, programs, sizes, in_place, draw)
            if not found.right:
                return found
            verdict = _both(verdict, found)
    return verdict


def _sizes(made: Schedule, draw: Random, draws: int) -> Iterator[list[int]]:
    """Sizes of all blocks: one each, all different, and random ones, as calls may have them."""
    keys = keys_of(made)
    yield [1] * keys
    for _ in range(draws):
        if made.uniform:
            yield [draw.randrange(4)] * keys
        elif made.collective.payload == "vector":
            counts = block_counts(draw.randrange(3 * keys + 1), keys)
            counts[-1] += draw.choice((0, 0, 2))  # a vector's last block may be longer
            yield counts
        elif draw.random() < .3:
            yield draw.sample(range(1, keys + 1), keys)
        else:
            yield [draw.choice((0, 0, 1, 2, 3)) for _ in range(keys)]


def lowered(mutant: Schedule, draw: Random) -> Verdict:
    """What holds of a mutant when it is lowered and executed, on one choice of block sizes."""
    *_, sizes = _sizes(mutant, draw, 1)
    in_place = bool(mutant.collective.in_place) and draw.random() < .5
    segment = 0 if in_place and mutant.collective.name == "reduce_scatter" else draw.choice((0, 1))
    case = BlockSizes(sizes.__getitem__ if sizes else lambda key: 1, len(sizes), in_place, segment)
    found = BruteForce(mutant, case).verdict([
        lower_all(mutant, mutant.collective, rank, case) for rank in range(mutant.size)])
    # Few elements need not show in which order they were combined.
    return found if not found.right else Verdict(True)


if __name__ == "__main__":
    outcome = main(*map(int, sys.argv[1:]))
    print(outcome)
    sys.exit(bool(outcome.disagreements))
