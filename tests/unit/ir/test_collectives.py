"""Collectives as pre- and postconditions, checked against MPI's own words."""

import pytest

from hpccoll.ir.collectives import (
    COLLECTIVES,
    IN,
    METHODS,
    OUT,
    block_counts,
    collective_named,
    method_named,
)

SIZES = [1, 2, 3, 5]


def contributions(collective, rank, size, root, nblocks=2):
    """{(block, rank): times wanted}; what is wanted must have been given."""
    return [(w.block, tuple(w.ranks)) for w in collective.wanted(rank, size, root, nblocks)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_whatever_is_wanted_was_given(name, size):
    collective = COLLECTIVES[name]
    for root in range(size):
        given = [collective.given(rank, size, root, 2) for rank in range(size)]
        for rank in range(size):
            for block, ranks in contributions(collective, rank, size, root):
                assert ranks and list(ranks) == sorted(ranks)
                for source in ranks:
                    assert any(block in keys for keys in given[source].values()), (name, block)


@pytest.mark.parametrize("name, given, wanted", [
    ("bcast", {1: {OUT: [0, 1]}}, {r: [(0, (1,)), (1, (1,))] for r in range(3)}),
    ("reduce", None, {1: [(0, (0, 1, 2)), (1, (0, 1, 2))]}),
    ("allreduce", None, {r: [(0, (0, 1, 2)), (1, (0, 1, 2))] for r in range(3)}),
    ("reduce_scatter", {r: {IN: [0, 1, 2]} for r in range(3)},
     {r: [(r, (0, 1, 2))] for r in range(3)}),
    ("allgather", {r: {IN: [r]} for r in range(3)},
     {r: [(s, (s,)) for s in range(3)] for r in range(3)}),
    ("gather", {r: {IN: [r]} for r in range(3)}, {1: [(s, (s,)) for s in range(3)]}),
    ("scatter", {1: {IN: [0, 1, 2]}}, {r: [(r, (1,))] for r in range(3)}),
    ("alltoall", {r: {IN: [3 * r, 3 * r + 1, 3 * r + 2]} for r in range(3)},
     {r: [(3 * s + r, (s,)) for s in range(3)] for r in range(3)}),
    ("scan", None, {r: [(b, tuple(range(r + 1))) for b in (0, 1)] for r in range(3)}),
    ("exscan", None, {r: [(b, tuple(range(r))) for b in (0, 1)] for r in (1, 2)}),
    ("barrier", {}, {}),
])
def test_three_ranks_and_root_one(name, given, wanted):
    collective = COLLECTIVES[name]
    if given is None:
        given = {r: {IN: [0, 1]} for r in range(3)}
    for rank in range(3):
        found = {b: list(keys) for b, keys in collective.given(rank, 3, 1, 2).items()}
        assert found == given.get(rank, {}), rank
        assert contributions(collective, rank, 3, 1) == wanted.get(rank, []), rank


def test_names_and_text():
    assert all(str(c) == name == c.name for name, c in COLLECTIVES.items())
    assert {n for n, c in COLLECTIVES.items() if c.rooted} == {"bcast", "reduce", "gather",
                                                               "scatter"}
    assert {n for n, c in COLLECTIVES.items() if c.reduces} == {
        "reduce", "allreduce", "reduce_scatter", "scan", "exscan"}


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 1001])
@pytest.mark.parametrize("nblocks", [1, 2, 5, 7])
def test_blocks_are_near_equal_and_complete(count, nblocks):
    counts = block_counts(count, nblocks)
    assert len(counts) == nblocks and sum(counts) == count
    assert max(counts) - min(counts) <= 1 and counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("name", METHODS)
def test_names_as_mpi_and_mpi4py_spell_them(name):
    first = name.capitalize()
    for text in (name, first, f"I{name}", f"i{name}", f"{first}_init", f"MPI_{first}",
                 f"MPI_I{name}"):
        assert (method_named(text), collective_named(text)) == (name, METHODS[name]), text


@pytest.mark.parametrize("text", ["", "i", "allreduced", "Iring", "MPI_", "allreduce "])
def test_what_is_no_collective_stays_as_it_was_written(text):
    assert method_named(text) == collective_named(text) == text
