"""Tree algorithms: proofs where the sweep over sizes does not go."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import RECV
from hpccoll.proof.cases import BlockSizes
from hpccoll.proof.verifier import prove, verify

ALGORITHM_NAMES = [(c, n) for c, names in {
    "barrier": "dissemination tree linear",
    "bcast": "linear binomial knomial chain binary scatter_allgather scatter_ring double_tree "
             "circulant bine",
    "reduce": "linear binomial knomial chain in_order_binary double_tree circulant bine",
    "allreduce": "linear reduce_bcast double_tree",
    "gather": "linear binomial",
    "scatter": "linear binomial"}.items() for n in names.split()]


def some_roots(size):
    return range(size) if size <= 9 else sorted({0, size // 3, size - 1})


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", ALGORITHM_NAMES)
def test_proved_where_the_sweep_does_not_go(collective, name):
    entry = ALGORITHMS[collective][name]
    for size, root in (33, 20), (129, 128):
        verify(schedule(collective, name, size, root=root), commutative=not entry.rank_order)
    for size, root in (65, 3), (100, 50):
        made = schedule(collective, name, size, root=root)
        keys = made.nblocks if made.collective.payload == "vector" else size
        prove(made, COLLECTIVES[collective], BlockSizes(lambda key: 1, keys))


@pytest.mark.parametrize("collective, name, values", [
    ("barrier", "dissemination", {"k": (2, 3, 40)}), ("barrier", "tree", {"k": (3, 40)}),
    ("bcast", "knomial", {"k": (2, 3, 40)}), ("reduce", "knomial", {"k": (2, 3, 40)}),
    ("bcast", "circulant", {"n": (1, 2, 5, 13)}), ("reduce", "circulant", {"n": (1, 2, 5, 13)})])
def test_proved_for_other_parameters(collective, name, values):
    (key, choices), = values.items()
    entry = ALGORITHMS[collective][name]
    for choice in choices:
        for size in (1, 2, 7, 12):
            verify(schedule(collective, name, size, root=size // 2, **{key: choice}),
                   commutative=not entry.rank_order)


@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
def test_nobody_receives_a_block_twice(name):
    for size in (1, 2, 3, 7, 8, 24, 33):
        for root in some_roots(size):
            for rank, program in enumerate(schedule("bcast", name, size, root=root).programs()):
                received = [slot for steps in program.rounds for step in steps if step.kind == RECV
                            for span in step.spans for slot in range(span.start, span.stop)]
                assert sorted(received) == ([] if rank == root else list(range(size)))


@pytest.mark.parametrize("collective, name", [
    ("barrier", "dissemination"), ("barrier", "tree"), ("bcast", "knomial"),
    ("reduce", "knomial")])
def test_a_radix_below_two_is_refused(collective, name):
    with pytest.raises(ArgumentError, match="k: .*2.*1"):
        schedule(collective, name, 8, k=1)
