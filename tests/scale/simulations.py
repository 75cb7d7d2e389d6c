"""What simulating very many ranks costs: ``PYTHONPATH=.:tests python -m scale.simulations``

prints the table of docs/internal/simulation-cost.md: every algorithm of the table, those that send
O(log p) messages a rank on 12,500 nodes of 8, the others on 1,250, with the messages a rank sends
on average, processor seconds, and the most memory of a process. ``--layout 64x8`` takes other
nodes, ``"allreduce ring" "scan linear"`` these alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from scale.measure import ROOT
from scale.test_simulate_scale import CHILD

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.topology import Topology

#: Ranks of the two kinds of algorithms; layouts on which they are told apart.
MANY, FEWER = "12500x8", "1250x8"
SMALL, LARGER = "4x2", "16x2"
#: Messages of a rank on the larger layout over those on the small one: where ranks are four times
#: as many, log p has grown by 5/3, and p by 4.
GROWS = 2
#: Seconds after which one is given up.
LIMIT = 300


def main() -> None:
    """Print a row for every algorithm, or for those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("titles", nargs="*", metavar="TITLE", help="such as 'allreduce ring'")
    parser.add_argument("--layout", help="of all; by default that of their kind")
    given = parser.parse_args()
    print("| collective | algorithm | ranks | messages a rank | classes | processor s | MiB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for collective, table in ALGORITHMS.items():
        for name in table:
            if not given.titles or f"{collective} {name}" in given.titles:
                layout = given.layout or (FEWER if linear(collective, name) else MANY)
                print(row(collective, name, layout), flush=True)


def linear(collective: str, name: str) -> bool:
    """Tell whether the messages of a rank grow with the number of ranks, not its logarithm."""
    return sent(collective, name, LARGER) > GROWS * sent(collective, name, SMALL)


def sent(collective: str, name: str, layout: str) -> float:
    """Messages that a rank sends, on average."""
    size = Topology.parse(layout).size
    known = {"topology": layout} if ALGORITHMS[collective][name].hierarchical else {}
    work = Workload(schedule(collective, name, size, **known), 1 << 20)
    return sum(message.sends for rank in range(size) for round in work.rounds(rank)
               for message in round.messages) / size


def row(collective: str, name: str, layout: str) -> str:
    """Simulate in a process of its own."""
    ranks = Topology.parse(layout).size
    start = f"| {collective} | `{name}` | {ranks:,} |"
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, collective, name, layout], text=True, timeout=LIMIT,
            capture_output=True, check=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    except subprocess.TimeoutExpired:
        return f"{start} | | > {LIMIT} | |"
    except subprocess.CalledProcessError as error:
        return f"{start} | {error.stderr.strip().splitlines()[-1]} | | |"
    seconds, memory, _, folding, messages = json.loads(done.stdout)
    words = folding.split()
    classes = words[3] if "class" in folding else words[0]
    return f"{start} {messages / ranks:.1f} | {classes} | {seconds:.1f} | {memory:.0f} |"


if __name__ == "__main__":
    main()
