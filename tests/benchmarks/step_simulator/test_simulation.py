"""Simulated steps: closed forms by hand, laws over ranks and networks, what is refused."""

import json
import os
import subprocess
import sys

import pytest
from step_simulator.catalog import find
from step_simulator.simulation import simulate_step

from hpccoll.errors import ArgumentError
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.training.buckets import fitting_bucket_bytes

#: Nothing but bytes cost anything: 1/1024 s each.
BYTES = Machine("bytes", (Level("network", 0.0, 2.0 ** -10),), 0.0)
FREE = Machine("free", (Level("network", 0.0, 0.0),), 0.0)
#: Four arrays of 1024 bytes; the last is ready first.
PROFILE = {
    "arrays": [{"name": n, "shape": [256], "dtype": "float32", "itemsize": 4} for n in "abcd"],
    "ready_seconds": [9.0, 7.0, 5.0, 3.0], "forward_seconds": 2.0, "backward_seconds": 10.0,
    "optimizer_seconds": 4.0}


def step(**more):
    rings = "allreduce=ring;reduce_scatter=ring;allgather=ring"
    return simulate_step(PROFILE, **{"nodes": 2, "machine": BYTES, "first_bucket_bytes": 0,
                                     "algorithm": rings, **more})


def test_by_hand():
    """Two ranks in a ring: a bucket of n bytes takes n/1024 s; here 1 s for each array."""
    found = step(bucket_bytes=0)
    assert (found.seconds, found.alone, found.exposed, found.flight) == (14, 14, 0, 4)
    assert (found.buckets, found.ranks, found.wire_bytes) == (4, 2, 4096)
    slow = step(bucket_bytes=0, machine=Machine("slow", (Level("network", 0.0, 2.0 ** -8),), 0.0))
    # 4 s each, from 3 s on: the last is done at 19 s, 9 s after the backward pass.
    assert (slow.seconds, slow.exposed, slow.flight) == (23, 9, 16)
    assert slow.share == 9 / 23 and slow.efficiency == 14 / 23
    one = step(bucket_bytes=4096, first_bucket_bytes=4096)
    assert (one.buckets, one.seconds, one.exposed) == (1, 17, 3), "all wait for the last array"
    assert step(bucket_bytes=0, overlap=False).seconds == 18


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_by_hand(stage):
    """Gradients half a second each, hidden; the update halved; then all parameters, 2 s."""
    found = step(bucket_bytes=0, shard=stage)
    assert (found.seconds, found.wire_bytes, found.exposed) == (10 + 2 + 2, 4096, 2)


def test_zero_3_by_hand():
    found = step(bucket_bytes=0, shard=3)
    # One gather is not hidden in front of each pass, and nothing else: 1/2 s each.
    assert found.wire_bytes == 3 * 2048 and found.exposed == pytest.approx(1.0)
    assert found.seconds == pytest.approx(10 + 2 + 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
@pytest.mark.parametrize("model", ["resnet50", "bert-large"])
def test_a_network_that_costs_nothing_scales_perfectly(model, shard):
    found = simulate_step(model, nodes=4, ppn=2, machine=FREE, shard=shard)
    assert found.efficiency == pytest.approx(1) and found.exposed == 0 and found.share == 0


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
@pytest.mark.parametrize("size", [2, 3, 8])
def test_wire_bytes_are_those_of_the_closed_form(shard, size):
    model = find("resnet50")
    found = simulate_step(model, nodes=size, shard=shard)
    rounds = 3 if shard == 3 else 2
    assert found.wire_bytes == pytest.approx(rounds * model.nbytes * (size - 1) / size)


def test_buckets_are_those_of_a_real_exchange():
    found = simulate_step("resnet50", nodes=4)
    assert found.plan.bucket_bytes == fitting_bucket_bytes(found.model.arrays)
    assert found.plan.bucket_bytes == 4 * 25_557_032 // 32


def test_text_and_json():
    found = simulate_step("resnet50", nodes=4, ppn=2, machine="perlmutter-gpu",
                          bucket_bytes=25 << 20)
    text = str(found)
    for word in ("resnet50 on 8 ranks of perlmutter-gpu, layout 4x2", "25,557,032 in 161 arrays",
                 "97.49 MiB", "buckets of 25 MiB", "scaling", "exposed",
                 "algorithms     allreduce"):
        assert word in text
    data = json.loads(json.dumps(found.as_json()))
    assert data["efficiency"] == found.efficiency and data["bucket_bytes"] == 25 << 20


@pytest.mark.parametrize("more, problem", [
    ({"shard": 4}, "shard: .*4.*ZeRO"), ({"lanes": -1}, "lanes: .*-1.*number"),
    ({"bucket_bytes": -1}, "bucket_bytes: .*negative"), ({"machine": "nowhere"}, "nowhere"),
    ({"ppn": "2y"}, "2y"), ({"nodes": 0}, "0x1")])
def test_what_is_refused(more, problem):
    with pytest.raises(ArgumentError, match=problem):
        simulate_step("resnet50", **more)


def test_simulating_needs_no_mpi():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules.update(mpi4py=None, torch=None)\n"
         "from step_simulator.simulation import simulate_step\n"
         "print(simulate_step('resnet50', nodes=4))"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
