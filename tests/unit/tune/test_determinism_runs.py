"""Classes of determinism by digests: of runs in which messages come in other orders every time."""

import hashlib

import numpy
import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.table import reproducible
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.testing import layouts
from hpccoll.testing.model_check import Network, Rounding, Run, wander

REDUCING = [name for name, collective in COLLECTIVES.items() if collective.reduces]
SIZE, SEEDS = 6, 4
#: Elements whose sums are looked at, in vectors of several lengths.
LANES = 12


class Repeating(Rounding):
    """Sums that are equal in elements ``LANES`` apart."""

    def input_blocks(self, rank):
        terms = numpy.random.default_rng(rank).standard_normal(LANES).astype("f4")
        return self._cut(numpy.resize(terms, sum(self.sizes)))


def digests(made, problem, seed, **how):
    run = Run(made, problem, Network(made.size, bool(seed % 2)), **how)
    assert not wander(run, seed)
    return [hashlib.sha256(seat.memory[OUT].array.tobytes()).digest() for seat in run.seats]


def posed(made, kind, count=LANES):
    blocks = made.collective.payload == "blocks"
    return kind(made.collective, made.size, [count] * made.size if blocks else [count * made.size],
                made.root, "sum", "f4")


@pytest.mark.long(every=2)
@pytest.mark.slow
@pytest.mark.parametrize("collective", REDUCING)
def test_run(collective):
    for name, entry in ALGORITHMS[collective].items():
        for layout in layouts(SIZE) if entry.hierarchical else (None,):
            made = schedule(collective, name, SIZE, topology=layout)
            seen = {tuple(digests(made, posed(made, Rounding), seed)) for seed in range(SEEDS)}
            seen |= {tuple(digests(made, posed(made, Rounding), 9, segment=5))}
            assert len(seen) == 1, made.title
            if collective == "allreduce" and not entry.exact_only:
                assert len(set(seen.pop())) == 1, made.title


@pytest.mark.parametrize("collective", REDUCING)
def test_size_and_layout(collective):
    """One order of evaluation, for every length, and for all algorithms that may serve."""
    seen = set()
    for name in reproducible(collective):
        made = schedule(collective, name, SIZE)
        for seed, count in enumerate((LANES, 2 * LANES, 5 * LANES)):
            run = Run(made, posed(made, Repeating, count), Network(SIZE))
            assert not wander(run, seed)
            seat = run.seats[0 if collective != "exscan" else 1]
            found = seat.memory[OUT].array
            bits = found[:LANES].tobytes()
            assert found.tobytes() == bits * (len(found) // LANES)
            seen.add(bits)
    assert len(seen) == 1


def test_another_order_would_be_seen():
    bits = {tuple(digests(made, posed(made, Rounding), 0)) for made in (
        schedule("allreduce", name, SIZE) for name in ("ring", "recursive_doubling"))}
    assert len(bits) == 2
