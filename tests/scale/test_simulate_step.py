"""Simulating a step on very many ranks, within its time and memory, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest
from scale.measure import ROOT

#: Steps on 4,096 nodes of 8 ranks, with limits in processor seconds and MiB.
CASES = [("resnet50", "none", 0), ("bert-large", "none", 0), ("gpt2-xl", "none", 0),
         ("gpt2-xl", "none", 1), ("gpt2-xl", "none", 3),
         ("gpt2-xl", "bf16", 0), ("bert-large", "powersgd:rank=4", 0),
         ("bert-large", "onebit", 0)]
SECONDS, MEBIBYTES = 60, 2048
CHILD = """
import json, sys, time
from scale.measure import peak_mebibytes
from step_simulator.simulation import simulate_step
model, compress, shard = sys.argv[1:]
start = time.process_time()
found = simulate_step(model, nodes=4096, ppn=8, compress=compress, shard=int(shard))
print(json.dumps([time.process_time() - start,
                  peak_mebibytes(),
                  found.seconds, found.efficiency]))
"""


@pytest.mark.long(every=8)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "compress", "shard"), CASES)
def test_limits(model, compress, shard):
    done = subprocess.run([sys.executable, "-c", CHILD, model, compress, str(shard)], check=True,
                          text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(
                              map(str, (ROOT, ROOT / "tests", ROOT / "benchmarks")))})
    took, memory, simulated, efficiency = json.loads(done.stdout)
    print(f"{model}, {compress}, ZeRO {shard}: {took:.1f} s, {memory:.0f} MiB; {simulated:.6g} s, "
          f"scaling {efficiency:.1%}")
    assert took < SECONDS
    if sys.platform == "linux":
        assert memory < MEBIBYTES
    assert 0 < efficiency < 1
