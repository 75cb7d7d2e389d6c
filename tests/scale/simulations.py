"""What simulating very many ranks costs: ``python tests/scale/simulations.py [LAYOUT] [NAMES]``

prints the table that docs/simulate.md quotes: every algorithm of the table that sends O(log p)
messages a rank on 12,500 nodes of 8, the others on 1,250. Processor seconds and the most memory of
a process for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from scale.measure import ROOT
from scale.test_simulate_scale import CHILD

from hpccoll.algorithms import ALGORITHMS

#: Ranks send or receive a message for every other one, or the busiest rank has a block of scratch
#: for each pair.
LINEAR = {
    "allreduce ring", "allreduce allpairs", "reduce_scatter ring", "reduce_scatter linear",
    "reduce_scatter pairwise", "allgather ring", "allgather linear", "allgather neighbor_exchange",
    "alltoall linear", "alltoall pairwise", "alltoall scattered", "alltoall leader",
    "alltoall two_phase", "bcast scatter_ring"}
MANY, FEWER = "12500x8", "1250x8"
#: Seconds after which one is given up.
LIMIT = 300


def main(layout: str = "", names: str = "") -> None:
    """Print a row for every algorithm, or for those named like ``allreduce ring``."""
    print("| collective | algorithm | ranks | classes | processor s | MiB |")
    print("|---|---|---:|---:|---:|---:|")
    for collective, table in ALGORITHMS.items():
        for name in table:
            title = f"{collective} {name}"
            if names and title not in names.split(","):
                continue
            where = layout or (FEWER if title in LINEAR else MANY)
            print(row(collective, name, where), flush=True)


def row(collective: str, name: str, layout: str) -> str:
    """Simulate in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, collective, name, layout], text=True, timeout=LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    except subprocess.TimeoutExpired:
        return f"| {collective} | `{name}` | {layout} | | > {LIMIT} | |"
    except subprocess.CalledProcessError:
        return f"| {collective} | `{name}` | {layout} | | refused: too many messages | |"
    seconds, memory, _, folding = json.loads(done.stdout)
    words = folding.split()
    classes = words[3] if "class" in folding else words[0]
    return (f"| {collective} | `{name}` | {words[0]} | {classes} | {seconds:.1f} | {memory:.0f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
