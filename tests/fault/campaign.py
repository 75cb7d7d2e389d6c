"""Kill and stop ranks in many jobs, and print how long the others took to say so.

    python tests/fault/campaign.py [--ranks 2,3,4,8] [--times 1] [--fault kill] [-o FILE.json]

runs every place of the fault - first, middle, last rank; before, during and after calls; ours and
the MPI library's - for each number of ranks, and prints one table. With ``-o`` it writes what each
rank said and when; ``docs/promises.py`` makes the table of docs/internal/promises.md of such files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

import jobs

#: Seconds until a wait fails.
TIMEOUT = 6.0


class Row(NamedTuple):
    """A line of the table: what went wrong, in whose calls, and what the others should say."""

    fault: str
    served: str
    words: str
    soonest: float
    latest: float


ROWS = (Row("kill", "ours", "was killed", 0, 2 * TIMEOUT),
        Row("kill", "native", "was killed", 0, 2 * TIMEOUT),
        Row("stop", "ours", "is stopped", TIMEOUT / 2, 2 * TIMEOUT),
        Row("stop", "native", "is stopped", TIMEOUT / 2, 2 * TIMEOUT))


def cases(row: Row, size: int) -> Iterator[dict[str, Any]]:
    """Every place of a fault in jobs of so many ranks; few of a stopped rank, which takes long."""
    for odd in sorted({0, size // 2, size - 1}):
        for when in ("before", "during", "after") if row.fault == "kill" else ("after",):
            large = {"count": 200_000, "bcast": 1} if when == "during" else {}
            yield {"odd": odd, "fault": row.fault, "served": row.served, "when": when, **large}


def main() -> int:
    """Run everything; the status says whether every rank named the right one in time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="2,3,4,8", help="numbers of ranks")
    parser.add_argument("--times", type=int, default=1, help="jobs of each kind")
    parser.add_argument("--fault", help="kill or stop; both if omitted")
    parser.add_argument("-o", "--output", type=Path, help="a file for what each rank said")
    options = parser.parse_args()
    bin = Path(sys.executable).parent
    library, wrong = jobs.library(bin), 0
    said: list[dict[str, Any]] = []
    print("| library | fault | calls | jobs | errors | right | median s | worst s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if options.fault not in (None, row.fault):
            continue
        seconds, count, right = [], 0, 0
        for size in map(int, options.ranks.split(",")):
            for case in [case for case in cases(row, size) for _ in range(options.times)]:
                count += 1
                for rank, one in jobs.run(bin, library, size, case, TIMEOUT).items():
                    told = f"rank {case['odd']} {row.words}" in one.text
                    good = told and row.soonest <= one.seconds < row.latest
                    right += good
                    seconds.append(one.seconds)
                    said.append({"library": library, "ranks": size, **case, "timeout": TIMEOUT,
                                 "rank": rank, "kind": one.kind, "right": good,
                                 "seconds": round(one.seconds, 3)})
                    if not good:
                        print(f"{size} ranks, {case}, rank {rank}: {one}", file=sys.stderr)
        if options.output:
            options.output.write_text(json.dumps(said, indent=0) + "\n", encoding="utf-8")
        wrong += len(seconds) - right
        print(f"| {library} | {row.fault} | {row.served} | {count} | {len(seconds)} | {right} | "
              f"{statistics.median(seconds):.2f} | {max(seconds):.2f} |", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
