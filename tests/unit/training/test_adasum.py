"""Adasum: orthogonal gradients give the sum, parallel ones the mean."""

import numpy
import pytest

from hpccoll.training.adasum import Adasum
from hpccoll.training.compress.scheme import finish
from support.threads import run_ranks


def combined(vectors, shapes):
    """What every rank has in the end."""
    def rank(comm):
        values = vectors[comm.Get_rank()].copy()
        finish(Adasum().start(comm, shapes).reduce(values))
        return values

    results = run_ranks(len(vectors), rank)
    for other in results[1:]:
        assert other.tobytes() == results[0].tobytes()
    return results[0]


def pairwise(a, b):
    aa, bb, ab = a @ a, b @ b, a @ b
    return a * (1 - ab / (2 * aa) if aa else 1) + b * (1 - ab / (2 * bb) if bb else 1)


def tree(vectors):
    """The definition, on whole vectors: extra ranks first, then neighbours of growing distance."""
    vectors = list(vectors)
    paired = 1 << (len(vectors).bit_length() - 1)
    for extra, vector in enumerate(vectors[paired:]):
        vectors[extra] = pairwise(vectors[extra], vector)
    vectors = vectors[:paired]
    while len(vectors) > 1:
        vectors = [pairwise(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
    return vectors[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_orthogonal_gives_the_sum_and_parallel_the_mean(size):
    unit = numpy.eye(size)
    assert combined([unit[rank] * 2.0 ** rank for rank in range(size)], [(size,)]).tolist() == [
        2.0 ** rank for rank in range(size)]
    line = numpy.array([1.0, -2.0, 4.0])
    same = combined([line] * size, [(3,)])
    assert numpy.allclose(same, line, rtol=1e-15)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("counts", [(1,), (5, 0, 2), (13, 1, 8)])
def test_every_array_is_combined_by_itself(size, counts):
    random = numpy.random.default_rng(size)
    vectors = [random.standard_normal(sum(counts)) for _ in range(size)]
    result, start = combined(vectors, [(count,) for count in counts]), 0
    for count in counts:
        part = slice(start, start + count)
        wanted = tree([vector[part] for vector in vectors])
        assert numpy.allclose(result[part], wanted, rtol=1e-12, atol=1e-14)
        start += count


def test_zeros_change_nothing():
    some = numpy.array([3.0, 4.0])
    assert combined([some, numpy.zeros(2)], [(2,)]).tolist() == [3.0, 4.0]
    assert combined([numpy.zeros(2)] * 2, [(2,)]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("shapes", [[(24,)], [(5,), (3, 7), (1,)]], ids=str)
def test_bytes_are_those_of_the_closed_form(size, shapes):
    count = sum(int(numpy.prod(shape)) for shape in shapes)

    def rank(comm):
        finish(Adasum().start(comm, shapes).reduce(numpy.ones(count, "f4")))
        return comm.sent_bytes

    assert sum(run_ranks(size, rank)) == pytest.approx(size * Adasum().wire_bytes(shapes, size))
