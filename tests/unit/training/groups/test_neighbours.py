"""Messages between neighbours: any type, and sizes that must agree."""

import ml_dtypes
import numpy
import pytest

from hpccoll.errors import MessageSizeError
from hpccoll.training.groups import Experts, Ulysses, ring_sums
from hpccoll.training.groups.neighbours import receive, send, wait_all
from support.threads import run_ranks


@pytest.mark.parametrize("dtype", [
    "f4", ml_dtypes.bfloat16, "?", "c16", [("a", "i2"), ("b", "f8")]])
@pytest.mark.parametrize("shape", [(3, 2), (0,), ()])
def test_arrays_of_any_type_arrive(dtype, shape):
    rng = numpy.random.default_rng(2)
    itemsize = numpy.dtype(dtype).itemsize
    raw = rng.integers(0, 2, (2, int(numpy.prod(shape)) * itemsize), dtype="u1")

    def function(comm):
        sent = raw[comm.rank].copy().view(dtype).reshape(shape)
        got = numpy.empty(shape, dtype)
        other = 1 - comm.rank
        wait_all([receive(comm, got, other, 3, "test"), send(comm, sent, other, 3, "test")])
        return got.tobytes()

    assert run_ranks(2, function) == [raw[1].tobytes(), raw[0].tobytes()]


@pytest.mark.parametrize("count", [3, 5])
def test_sizes_that_differ(count):
    def function(comm):
        if comm.rank == 0:
            send(comm, numpy.zeros(count), 1, 3, "test").wait()
        else:
            with pytest.raises(MessageSizeError):
                receive(comm, numpy.zeros(4), 0, 3, "test").wait()

    run_ranks(2, function)


class Foreign:
    """An array of another library, whose memory NumPy sees."""

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, dtype=None, copy=None):
        return self.memory


def test_memory_of_others_is_read_and_written():
    def function(comm):
        mine, got, sums = (numpy.full(2, comm.rank + 1.0) for _ in range(3))
        other = 1 - comm.rank
        wait_all([receive(comm, Foreign(got), other, 3, "test"),
                  send(comm, Foreign(mine), other, 3, "test")])
        for _, _, added in ring_sums(comm, Foreign(mine), Foreign(sums)):
            added += 1
        form = Ulysses(comm, 2, 2)
        back = form.to_tokens(Foreign(form.to_heads(Foreign(mine[None]))))
        sent = Experts(comm, 2).dispatch(Foreign(mine), [0, 1])
        combined = sent.combine(Foreign(sent.tokens))
        return got.tolist(), sums.tolist(), back.tolist(), combined.tolist()

    assert run_ranks(2, function) == [
        ([2 - rank] * 2, [2, 2], [[rank + 1] * 2], [rank + 1] * 2) for rank in range(2)]
