"""The simulator for very many ranks, within its time and memory, in a process of its own."""

import json
import os
import subprocess
import sys
import tracemalloc

import pytest
from scale.measure import ROOT

from hpccoll.algorithms import schedule
from hpccoll.simulator import simulate
from hpccoll.simulator.compiled_loop import is_available

#: Lines of Python for a message or program.
LINES = 250
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
    ("scan", "recursive_doubling", "2500x8", 30, 512),
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
                  found.seconds, found.folding, found.messages]))
"""


@pytest.mark.long(every=9)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("collective", "name", "layout", "seconds", "mebibytes"), CASES,
                         ids=[" ".join(case[:3]) for case in CASES])
def test_limits(collective, name, layout, seconds, mebibytes):
    done = subprocess.run([sys.executable, "-c", CHILD, collective, name, layout], check=True,
                          text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    took, memory, simulated, folding, _ = json.loads(done.stdout)
    print(f"{collective} {name} {layout}: {took:.1f} s, {memory:.0f} MiB; {simulated:.6g} s; "
          f"{folding}")
    assert took < seconds
    if sys.platform == "linux":
        assert memory < mebibytes
    assert simulated > 0


@pytest.mark.long(every=3)
@pytest.mark.slow
@pytest.mark.parametrize(("collective", "name"), [
    ("scan", "recursive_doubling"), ("scan", "census"), ("allreduce", "recursive_multiplying"),
    ("allreduce", "double_tree"), ("reduce_scatter", "recursive_halving"), ("bcast", "linear")])
def test_work_for_a_rank_does_not_grow(collective, name):
    """The worst of those that send O(log p) messages: ranks of which few are alike."""
    def lines(size):
        made = schedule(collective, name, size)
        count = 0

        def note(frame, event, argument):
            nonlocal count
            count += event == "line"
            return note

        sys.settrace(note)
        try:
            found = simulate(made, 1 << 20, "hdr", f"{size // 8}x8")
        finally:
            sys.settrace(None)
        return count / (2 * found.messages + size)

    lines(72)  # what is imported and remembered
    small, large = lines(264), lines(520)
    print(f"{collective} {name}: {small:.0f} lines a message or program, then {large:.0f}")
    assert large < 1.25 * small + 1 and large < LINES


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not is_available(), reason="not compiled")
def test_a_message_takes_little_memory():
    """1.6 million messages of 100,000 ranks must fit into 2 GiB."""
    made = schedule("scan", "recursive_doubling", 2048)
    simulate(made, 1 << 20, "hdr", "256x8")
    tracemalloc.start()
    try:
        found = simulate(made, 1 << 20, "hdr", "256x8")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / found.messages < 1000
