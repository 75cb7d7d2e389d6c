"""From names and builders to schedules."""

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, find, schedule
from hpccoll.algorithms.flat import ring
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT
from hpccoll.ir.schedule import Program, at, copy
from support.folded import folded


def test_a_builder_of_ones_own_is_a_schedule():
    def mine(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),))

    made = schedule("allreduce", mine, 1)
    assert made.algorithm == "mine" and made.collective is ALLREDUCE
    hpccoll.verify(made)
    hpccoll.verify(schedule("allreduce", find("allreduce", "ring"), 3))


@pytest.mark.parametrize("arguments, options, complaint", [
    (("allreduce", "ringg", 4), {}, "allreduce.*'ringg'.*'ring'"),
    (("allreduc", "ring", 4), {}, "'allreduc'.*'allreduce'"),
    (("allreduce", "ring", 0), {}, "number of ranks.*0"),
    (("allreduce", "ring", None), {}, "ranks.*None"),
    (("allreduce", "ring", True), {}, "ranks.*True"),
    (("allreduce", "ring", 2.0), {}, "ranks.*2.0"),
    (("bcast", "binomial", 4), {"root": 4}, "root: .*4.*0..3"),
    (("bcast", "binomial", 4), {"root": -1}, "root: .*-1.*0..3"),
    (("bcast", "binomial", 4), {"root": "0"}, "root: '0'"),
    (("bcast", "binomial", 4), {"k": 3}, "bcast binomial"),
    (("bcast", "knomial", 4), {"q": 3}, "bcast knomial"),
    (("bcast", "knomial", 4), {"k": 0}, "k: .*positive.*0"),
    (("bcast", "knomial", 4), {"k": 2.5}, "k: .*positive.*2.5"),
    (("allreduce", "ring", 4), {"nblocks": 2}, "nblocks: ring"),
    (("allreduce", lambda rank, size: None, 4), {"nblocks": 0}, "nblocks: .*1"),
    (("allreduce", "ring", 4), {"topology": "2x3"}, "'2x3'.*6 ranks"),
    (("allreduce", 7, 4), {}, "builder.*7"),
])
def test_what_is_refused_and_how(arguments, options, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        schedule(*arguments, **options)


@folded("collective, name", [
    (collective, name) for collective, table in ALGORITHMS.items() for name in table])
def test_one_rank_sends_nothing(collective, name):
    made = schedule(collective, name, 1)
    assert made.rounds in (0, None) and made.sent in (0, None)
    assert made.nblocks >= 1


def test_a_collective_may_be_spelled_as_in_mpi():
    for text in ("Allreduce", "Iallreduce", "MPI_Allreduce", "Allreduce_init"):
        assert schedule(text, "ring", 4).title == schedule("allreduce", "ring", 4).title
        assert schedule(text, ring.allreduce, 4).collective.name == "allreduce"
    assert schedule("Reduce_scatter_block", "ring", 4).collective.name == "reduce_scatter"
    with pytest.raises(ArgumentError, match="'Alreduce'.*'allreduce'"):
        schedule("Alreduce", "ring", 4)
