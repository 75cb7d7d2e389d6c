"""The simulator for very many ranks, within its time and memory, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest
from scale.measure import ROOT

#: Simulations: collective, algorithm, layout on the machine, limits in processor seconds and MiB.
CASES = [
    ("allreduce", "rails", "12500x2x4", 60, 2048),
    ("allreduce", "multi_leader", "2048x2x4", 60, 2048),
    ("allgather", "rails", "1024x8", 60, 2048),
    ("allreduce", "ring", "1024", 10, 1024),
    ("allreduce", "ring", "1024x8", 60, 2048),
    ("allreduce", "recursive_doubling", "16384x8", 60, 2048),
    ("alltoall", "pairwise", "1024x4", 60, 2048),
    ("barrier", "dissemination", "12500x8", 60, 2048),
]
CHILD = """
import json, sys, time
from scale.measure import peak_mebibytes
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.simulator import simulate
from hpccoll.ir.topology import Topology
collective, name, layout = sys.argv[1:]
start = time.process_time()
known = dict(topology=layout) if ALGORITHMS[collective][name].hierarchical else {}
made = schedule(collective, name, Topology.parse(layout).size, **known)
found = simulate(made, 0 if collective == "barrier" else 1 << 30, "hdr", layout)
print(json.dumps([time.process_time() - start,
                  peak_mebibytes(),
                  found.seconds, found.folding]))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("collective", "name", "layout", "seconds", "mebibytes"), CASES,
                         ids=[" ".join(case[:3]) for case in CASES])
def test_limits(collective, name, layout, seconds, mebibytes):
    done = subprocess.run([sys.executable, "-c", CHILD, collective, name, layout], check=True,
                          text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    took, memory, simulated, folding = json.loads(done.stdout)
    print(f"{collective} {name} {layout}: {took:.1f} s, {memory:.0f} MiB; {simulated:.6g} s; "
          f"{folding}")
    assert took < seconds
    if sys.platform == "linux":
        assert memory < mebibytes
    assert simulated > 0
