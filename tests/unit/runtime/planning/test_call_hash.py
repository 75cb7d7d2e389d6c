"""Which calls are described alike: those that MPI lets ranks make together."""

import numpy
import pytest

from hpccoll.calls import resolve
from hpccoll.runtime.planning.call_hash import describe_native, element_of
from hpccoll.transport.call_hashes import agree

NONE, INTS = numpy.empty(0), numpy.zeros(8, "i4")


def call(method, *args, rank=0):
    return getattr(resolve, method)(2, rank, *args)


def alike(one, other):
    return agree(*(describe_native(found, found.name).call_hash() for found in (one, other)))


@pytest.mark.parametrize("one, other", [
    (call("gatherv", NONE, None, 0, rank=1), call("gatherv", INTS, [INTS.copy(), [8, 0]], 0)),
    (call("gatherv", NONE, [INTS, [0, 8]], 0), call("gatherv", INTS, None, 0, rank=1)),
    (call("scatterv", None, NONE, 0, rank=1), call("scatterv", [INTS, [8, 0]], INTS.copy(), 0)),
    (call("alltoallv", [NONE, [0, 0]], [NONE, [0, 0]], rank=1),
     call("alltoallv", [INTS, [8, 0]], [INTS.copy(), [8, 0]])),
    (call("alltoallv", [NONE, [0, 0]], [NONE, [0, 0]]),
     call("alltoallv", [INTS, [0, 8]], [INTS.copy(), [0, 8]], rank=1)),
    (call("alltoallv", [numpy.zeros(8), [8, 0]], [numpy.zeros(8), [8, 0]]),
     call("alltoallv", [INTS, [0, 8]], [INTS.copy(), [0, 8]], rank=1)),
    (call("allgatherv", NONE, [INTS, [0, 8]]), call("allgatherv", INTS, [INTS.copy(), [0, 8]],
                                                rank=1)),
    (call("bcast", NONE, 0), call("bcast", INTS[:0], 0)),
])
def test_who_has_nothing_may_have_any_type(one, other):
    assert alike(one, other)


@pytest.mark.parametrize("one, other", [
    (call("gatherv", INTS.view("f4"), None, 0, rank=1),
     call("gatherv", INTS[:4], [INTS.copy(), [4, 4]], 0)),
    (call("alltoallv", [INTS, [4, 4]], [INTS.copy(), [4, 4]]),
     call("alltoallv", [INTS.view("f4"), [4, 4]], [INTS.view("f4").copy(), [4, 4]], rank=1)),
    (call("bcast", INTS, 0), call("bcast", INTS.view("f4"), 0)),
])
def test_who_has_something_must_have_its_type(one, other):
    assert not alike(one, other)


def test_the_type_of_what_moves():
    assert element_of(call("bcast", INTS, 0)) == "i4" and element_of(call("bcast", NONE, 0)) == ""
