"""How long proofs and programs take for many ranks: ``python tests/scale/measure.py``

prints the tables that the documentation quotes. Processor time is what counts, so that other work
on the machine counts little; each proof runs in a process of its own, so that its memory is its
own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import Schedule
from hpccoll.proof.verifier import verify

ROOT = Path(__file__).resolve().parent.parent.parent
#: Schedules proved for 1,024 ranks.
PROVED = [
    "allreduce circulant 1024", "allreduce rails 64x16", "allreduce recursive_doubling 1024",
    "allreduce pat 1024", "allreduce rabenseifner 1024", "allreduce leader 64x16",
    "reduce_scatter circulant 1024", "allgather circulant 1024", "bcast binomial 1024",
    "reduce binomial 1024", "barrier dissemination 1024"]
#: Ranks, and the layout of them, for which single ranks' programs are generated.
MANY, LAYOUT = 4096, "256x16"


class Proved(NamedTuple):
    """What one proof took: processor seconds, and the most memory of its process."""

    seconds: float
    mebibytes: float


def made(title: str) -> Schedule:
    """The schedule of a title such as ``allreduce rails 64x16``."""
    collective, name, layout = title.split()
    if ALGORITHMS[collective][name].hierarchical:
        return schedule(collective, name, topology=layout)
    return schedule(collective, name, int(layout))


def prove(title: str) -> Proved:
    """Prove a schedule in a process of its own."""
    child = subprocess.run([sys.executable, __file__, title], check=True, text=True,
                           stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return Proved(*json.loads(child.stdout))


def prove_here(title: str) -> Proved:
    """Prove a schedule in this process."""
    start = time.process_time()
    verify(made(title))
    return Proved(time.process_time() - start, peak_mebibytes())


def peak_mebibytes() -> float:
    """The most memory that this process has had."""
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def programs() -> list[tuple[str, str]]:
    """Every algorithm of the table."""
    return [(collective, name) for collective, table in ALGORITHMS.items() for name in table]


def many(collective: str, name: str) -> Schedule:
    """The schedule of an algorithm for very many ranks, with a root in their middle."""
    root = MANY // 2 if COLLECTIVES[collective].rooted else 0
    if ALGORITHMS[collective][name].hierarchical:
        return schedule(collective, name, topology=LAYOUT, root=root)
    return schedule(collective, name, MANY, root=root)


class Generated(NamedTuple):
    """What one rank's program took: processor seconds; its steps, and the spans they name."""

    seconds: float
    steps: int
    spans: int


def generate(big: Schedule, rank: int) -> Generated:
    """Generate one rank's program."""
    start = time.process_time()
    rounds = big.program(rank).rounds
    seconds = time.process_time() - start
    return Generated(seconds, sum(map(len, rounds)),
                     sum(len(step.spans) + len(step.source) for steps in rounds for step in steps))


def main() -> None:
    """Print both tables."""
    print(f"{'proof':36} {'seconds':>8} {'MiB':>6}")
    for title in PROVED:
        seconds, mebibytes = prove(title)
        print(f"{title:36} {seconds:8.2f} {mebibytes:6.0f}", flush=True)
    print(f"\n{f'program of one of {MANY} ranks':36} {'ms':>8} {'steps':>6} {'spans':>6}")
    for collective, name in programs():
        big = many(collective, name)
        # The rank with the most to do, and its best of five attempts.
        rank = max((0, MANY // 2, MANY - 1), key=lambda rank: generate(big, rank).spans)
        seconds, steps, spans = min(generate(big, rank) for _ in range(5))
        print(f"{collective + ' ' + name:36} {seconds * 1e3:8.2f} {steps:6} {spans:6}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(prove_here(sys.argv[1])))
    else:
        main()
