"""Online autotuning of bucket bytes, partition, credit and algorithm, one at a time.

The search does not communicate: it yields settings and receives the seconds of a step. The caller
passes the same number on all ranks, so all ranks choose the same settings. Compression is not
tuned, because it changes the result of training.

The log has one JSON line for each sample, and one for the chosen settings. A later run that finds
a complete log uses these settings and does not search.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hpccoll.atomic_file import open_replacement
from hpccoll.errors import ArgumentError

#: Warm-up steps of a sample, which fill caches and plans, and timed steps.
WARM_UP, SAMPLE = 3, 10
#: Factors by which a size is changed while the time improves.
FACTORS = 2, 0.5
#: Smallest relative improvement for which a setting is changed.
GAIN = 0.02
LEAST_BYTES, MOST_BYTES = 64 << 10, 1 << 30


@dataclass(frozen=True)
class Knobs:
    """Tuned settings; see :class:`~hpccoll.training.exchange.Exchange`. 0 stays 0."""

    bucket_bytes: int
    partition_bytes: int = 0
    credit_bytes: int = 0
    algorithm: str = "auto"


Search = Generator[Knobs, float, Knobs]


def search(start: Knobs, algorithms: Sequence[str] = ("auto", "native")) -> Search:
    """Yield knobs, receive the seconds of a step with them, and return the best knobs.

    Sizes are doubled, then halved, while the time improves; then algorithms are compared.
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
    """Autotuning of one exchange."""

    def __init__(self, start: Knobs, path: str | None, rank: int):
        self.knobs, self.path, self.rank, self.done = start, path, rank, False
        self._search = search(start)
        next(self._search)
        self._times: list[float] = []
        self._lines: list[dict[str, Any]] = []

    def add_step(self, seconds: float) -> float | None:
        """Record the time of a step; return the median of a complete sample, else None."""
        self._times.append(seconds)
        if self.done or len(self._times) < WARM_UP + SAMPLE:
            return None
        sample, self._times = median(self._times[WARM_UP:]), []
        return sample

    def next_knobs(self, seconds: float) -> Knobs:
        """Pass a sample's seconds, equal on all ranks, to the search; return the next knobs."""
        self._lines.append({"seconds": seconds, **asdict(self.knobs)})
        try:
            self.knobs = self._search.send(seconds)
        except StopIteration as end:
            self.knobs, self.done = end.value, True
            self._lines.append({"chosen": True, **asdict(self.knobs)})
        if self.path is not None and self.rank == 0:
            with open_replacement(self.path) as file:
                file.writelines(json.dumps(line) + "\n" for line in self._lines)
        return self.knobs


def knobs_from_log(path: str) -> Knobs | None:
    """Return the knobs of an earlier run; ``None`` without a complete log."""
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
