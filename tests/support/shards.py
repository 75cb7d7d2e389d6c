"""What tests of sharded training share: optimizers, a made-up model, and a loop without shards."""

import numpy
from mpi4py import MPI

from hpccoll.training.optimizers import Adam
from hpccoll.training.shard.weights import Fetching
from hpccoll.training.shard.zero import Sharded

#: Shapes whose groups leave every kind of remainder, with an empty array and one of one element.
SHAPES = [(7, 3), (5,), (0,), (1,), (13, 2), (4, 4), (11,)]
#: Arrays that are used together.
UNITS = [[0, 1], [2, 3, 4], [5, 6]]


def adam():
    """Two vectors of state, and a rule that depends on the number of the step."""
    return Adam(rate=0.01, beta2=0.99)


def weights(shapes=SHAPES, dtype="f4"):
    """The same first weights on every rank."""
    random = numpy.random.default_rng(1)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def gradient(index, array, rank, number):
    """A gradient that depends on everything, and whose sums round."""
    random = numpy.random.default_rng((index, rank, number))
    spread = 10.0 ** random.integers(-3, 3, array.shape)
    return (array * 0.1 + random.standard_normal(array.shape) * spread).astype(array.dtype)


def plain(comm, optimizer, steps=3, arrays=None, factor_of=lambda norm: 1.0):
    """Train without shards: allreduce, divide, clip, step."""
    arrays = weights() if arrays is None else arrays
    states = [optimizer.start(array.size, array.dtype) for array in arrays]
    for number in range(1, steps + 1):
        gradients = [gradient(index, array, comm.Get_rank(), number)
                     for index, array in enumerate(arrays)]
        for one in gradients:
            comm.Allreduce(MPI.IN_PLACE, one)
            one /= comm.Get_size()
        norm = sum(float((one.astype("f8") ** 2).sum()) for one in gradients) ** 0.5
        for array, one, state in zip(arrays, gradients, states):
            one *= numpy.asarray(factor_of(norm), one.dtype)
            optimizer.step(array.reshape(-1), one.reshape(-1), state, number)
    return arrays


def one_pass(sharded, number, order=None):
    """A forward and a backward pass of the made-up model, whose gradients go to ``ready``."""
    rank = sharded.rank
    if order is not None:
        arrays = sharded.parameters
        for index in order:
            sharded.ready(index, gradient(index, arrays[index], rank, number))
        return
    for unit in range(len(sharded.units)):
        with sharded.fetched(unit):
            pass
    for unit in reversed(range(len(sharded.units))):
        with sharded.fetched(unit) as arrays:
            for index in reversed(sharded.units[unit]):
                sharded.ready(index, gradient(index, arrays[index], rank, number))


def make(comm, stage, optimizer, arrays=None, **options):
    """A sharded model of the shapes above, in several groups at every stage."""
    if arrays is None:
        options.setdefault("units", UNITS)
    if stage == 3:
        options.setdefault("fetching", Fetching(persistent=6))
    else:
        options.setdefault("bucket_bytes", 100)
        options.setdefault("first_bucket_bytes", 30)
    return Sharded(comm, weights() if arrays is None else arrays, optimizer, stage=stage,
                   **options)


def whole(sharded):
    """All weights, whole, wherever they are."""
    return sharded.state()["vectors"]["weights"]


def same(left, right):
    """Whether lists of arrays have the same shapes and bits."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(left, right))
