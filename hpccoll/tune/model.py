"""Costs by closed form: rounds * alpha + bytes * beta, with constants fitted to measured times.

Source of the model: Hockney. ``alpha`` is what one of a chain of messages costs, ``beta`` what a
byte costs the rank that sends most, with everything that comes along: copies, reductions, the
processor shared with others. So they are fitted to the times of whole collectives on the machine
and layout at hand, never taken from a data sheet, and say nothing about another.
"""

from __future__ import annotations

from typing import Iterable, NamedTuple

from hpccoll.algorithms import schedule
from hpccoll.config import NATIVE
from hpccoll.topology import Topology
from hpccoll.tune.table import Candidate, Curves

#: Fewest times that constants are fitted to.
FEWEST = 4


class Terms(NamedTuple):
    """What an algorithm does for a call: its longest chain of messages, and bytes of one rank."""

    rounds: int
    nbytes: float


class Model(NamedTuple):
    """Seconds of a round, and of a byte."""

    alpha: float
    beta: float

    def seconds(self, terms: Terms) -> float:
        """The expected time."""
        return self.alpha * terms.rounds + self.beta * terms.nbytes


def terms(collective: str, candidate: Candidate, size: int, nbytes: int,
          topology: Topology | None = None) -> Terms | None:
    """The terms of a candidate; ``None`` where there is no closed form."""
    if candidate.name == NATIVE:
        return None
    made = schedule(collective, candidate.name, size, topology=topology, **dict(candidate.params))
    if made.rounds is None or made.sent is None and nbytes:
        return None
    blocks = made.nblocks if made.collective.payload == "vector" else size
    return Terms(made.rounds, (made.sent or 0) * nbytes / max(blocks, 1))


def calibrated(curves: Curves, collective: str, size: int,
               topology: Topology | None = None) -> Model | None:
    """Fit the constants of a collective to measured times; ``None`` where there are too few.

    A byte that is reduced costs more than one that is copied, so every collective has its own;
    one that was not measured has those of all others together.
    """
    samples = [(kind[0], known, seconds) for kind, curve in curves.items()
               for nbytes, times in curve for candidate, seconds in times.items()
               if (known := terms(kind[0], candidate, size, nbytes, topology)) is not None]
    return (fit((known, seconds) for name, known, seconds in samples if name == collective)
            or fit((known, seconds) for _, known, seconds in samples))


def fit(samples: Iterable[tuple[Terms, float]]) -> Model | None:
    """The constants, neither of them negative, that explain the samples best.

    Times span orders of magnitude, so it is the relative errors whose squares are smallest.

    >>> fit((Terms(r, b), 2e-6 * r + 1e-9 * b) for r, b in ((1, 0), (2, 1e6), (3, 8), (9, 1e4)))
    Model(alpha=2e-06, beta=1e-09)
    """
    aa = ab = bb = a1 = b1 = count = 0.0
    for (rounds, nbytes), seconds in samples:
        a, b = rounds / seconds, nbytes / seconds
        aa, ab, bb, a1, b1, count = aa + a * a, ab + a * b, bb + b * b, a1 + a, b1 + b, count + 1
    determinant = aa * bb - ab * ab
    if count < FEWEST or determinant <= 1e-9 * aa * bb:
        return None
    alpha, beta = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b1 / bb
    elif beta < 0:
        alpha, beta = a1 / aa, 0.0
    return Model(float(f"{alpha:.6g}"), float(f"{beta:.6g}"))
