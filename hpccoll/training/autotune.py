"""Autotuning inside the run: bucket bytes, partition, credit and algorithm, one at a time.

A pure search asks for settings and is told seconds; whoever times steps tells it the same number
on all ranks, so all ranks search alike. Compression is no knob: it changes what is learnt.

The log has one line of JSON for every sample, and one for what was chosen; a later run that finds
it there uses that and searches no more.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hpccoll.atomic_file import replacing
from hpccoll.errors import ArgumentError

#: Steps that a sample leaves out, as caches and plans are new, and steps that it times.
WARM_UP, SAMPLE = 3, 10
#: Factors of a size that are tried, as long as they help.
FACTORS = 2, 0.5
#: What must be saved for a change to be worth it.
GAIN = 0.02
LEAST_BYTES, MOST_BYTES = 64 << 10, 1 << 30


@dataclass(frozen=True)
class Knobs:
    """What is tuned; see :class:`~hpccoll.training.exchange.Exchange`; 0 stays 0."""

    bucket_bytes: int
    partition_bytes: int = 0
    credit_bytes: int = 0
    algorithm: str = "auto"


Search = Generator[Knobs, float, Knobs]


def search(start: Knobs, algorithms: Sequence[str] = ("auto", "native")) -> Search:
    """Ask for knobs, get the seconds of a step with them; return the best.

    Sizes are doubled, then halved, as long as that saves time; then algorithms are compared.
    """
    best = start
    least = yield best
    for name in ("bucket_bytes", "partition_bytes", "credit_bytes"):
        for factor in FACTORS:
            improved = False
            while LEAST_BYTES <= (size := int(getattr(best, name) * factor)) <= MOST_BYTES:
                tried = Knobs(**{**asdict(best), name: size})
                seconds = yield tried
                if seconds > least * (1 - GAIN):
                    break
                best, least, improved = tried, seconds, True
            if improved:
                break
    for algorithm in algorithms:
        if algorithm != best.algorithm:
            tried = replace(best, algorithm=algorithm)
            seconds = yield tried
            if seconds <= least * (1 - GAIN):
                best, least = tried, seconds
    return best


class Autotune:
    """The search of one exchange.

    Args:
        start: the knobs to begin with.
        path: of the log, written by rank 0; or ``None``.
        rank: this rank.

    Attributes:
        knobs: to be used now.
        over: the search has ended.
    """

    def __init__(self, start: Knobs, path: str | None, rank: int):
        self.knobs, self.path, self.rank, self.over = start, path, rank, False
        self._search = search(start)
        next(self._search)
        self._times: list[float] = []
        self._lines: list[dict[str, Any]] = []

    def timed(self, seconds: float) -> float | None:
        """Take in the time of a step; the median of a sample when that is complete."""
        self._times.append(seconds)
        if self.over or len(self._times) < WARM_UP + SAMPLE:
            return None
        sample, self._times = median(self._times[WARM_UP:]), []
        return sample

    def tell(self, seconds: float) -> Knobs:
        """Go on with the seconds of a sample, the same on all ranks; the knobs for the next."""
        self._lines.append({"seconds": seconds, **asdict(self.knobs)})
        try:
            self.knobs = self._search.send(seconds)
        except StopIteration as end:
            self.knobs, self.over = end.value, True
            self._lines.append({"chosen": True, **asdict(self.knobs)})
        if self.path is not None and self.rank == 0:
            with replacing(self.path) as file:
                file.writelines(json.dumps(line) + "\n" for line in self._lines)
        return self.knobs


def replayed(path: str) -> Knobs | None:
    """What an earlier run chose; ``None`` if there is no log, or its search did not end.

    Raises:
        ArgumentError: the file is no log.
    """
    file = Path(path)
    if not file.exists():
        return None
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        last = lines[-1] if lines else {}
        return Knobs(**{name: last[name] for name in asdict(Knobs(0))}) if (
            last.pop("chosen", False)) else None
    except (ValueError, KeyError, AttributeError) as error:
        raise ArgumentError("autotune", f"{path} is not an autotuning log: {error}",
                            "give the path of a new file") from error
