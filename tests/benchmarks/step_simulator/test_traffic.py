"""What a bucket sends: bytes on the wire are those of the scheme, dealt out to its collectives."""

import pytest
from step_simulator import traffic

from hpccoll.training.buckets import ArraySpec, plan_buckets

SPECS = [ArraySpec("a", (60, 50)), ArraySpec("b", (1000,))]
[BUCKET] = plan_buckets(SPECS, 1 << 20, 1 << 20)
NBYTES = 16000


class Made:
    """A scheme that sends a number of bytes, and remembers what it was asked."""

    def __init__(self, name, wire, dense=False):
        self.name, self.wire, self.dense = name, wire, dense

    def wire_bytes(self, shapes, size, step=None):
        self.asked = shapes, size
        return self.wire


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_without_a_scheme_all_bytes_are_allreduced(size):
    found = traffic.gradients(BUCKET, SPECS, None, 0, size)
    [(name, nbytes)] = found.collectives
    assert (name, found.compressed) == ("allreduce", 0) and nbytes == pytest.approx(NBYTES)
    assert found.wire_bytes == pytest.approx(2 * NBYTES * (size - 1) / size)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 7])
def test_zero_sends_half_down_and_half_up(stage, size):
    down = traffic.gradients(BUCKET, SPECS, None, stage, size)
    up = traffic.parameters(BUCKET, size)
    assert [name for name, _ in (*down.collectives, *up.collectives)] == [
        "reduce_scatter", "allgather"]
    for found in (down, up):
        assert found.collectives[0][1] == pytest.approx(NBYTES)
        assert found.wire_bytes == pytest.approx(NBYTES * (size - 1) / size)


@pytest.mark.parametrize("name, collectives", [
    ("bf16", ["allreduce"]), ("randomk", ["allreduce"]), ("onebit", ["alltoall", "allgather"]),
    ("topk", ["allgather"]), ("powersgd", ["allreduce"] * 2), ("new", ["allreduce"])])
@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_scheme_sends_its_bytes_by_its_collectives(name, collectives, size):
    scheme = Made(name, 960.0)
    found = traffic.gradients(BUCKET, SPECS, scheme, 0, size)
    assert [each for each, _ in found.collectives] == collectives
    sent = sum(nbytes * (size - 1) / size * (2 if each == "allreduce" else 1)
               for each, nbytes in found.collectives)
    assert sent == pytest.approx(960) == found.wire_bytes
    assert scheme.asked == ([(1000,), (60, 50)], size), "in the order of the bucket"
    assert found.compressed == NBYTES
