"""Builds of schedules: arguments, order and the table of algorithms."""

import random
import time
from dataclasses import replace

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, algorithm_names, find, schedule
from hpccoll.algorithms.entry import LARGE, SMALL
from hpccoll.algorithms.flat import ring
from hpccoll.algorithms.formula import (
    LEGEND,
    Formula,
    Relation,
    ceil_log,
    floor_log,
    k,
    n,
    p,
)
from hpccoll.algorithms.table import picks, reproducible
from hpccoll.errors import ArgumentError, ProofError
from hpccoll.ir.collectives import ALLREDUCE, COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import SEND, Program, at, copy
from hpccoll.ir.topology import Topology
from hpccoll.proof.verifier import verify
from support.folded import folded
from support.layouts import dealt


# From names and builders to schedules
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


# Schedules for ranks that are not numbered group by group: proofs, and what crosses
HIERARCHICAL = [(collective, name) for collective, table in ALGORITHMS.items()
                for name, entry in table.items() if entry.hierarchical]


def shuffled(shape, seed):
    plain = Topology.parse(shape)
    order = list(range(plain.size))
    random.Random(seed).shuffle(order)
    return Topology(plain.tree, tuple(order))


LAYOUTS = [dealt("2x2"), Topology.parse("2x2@3,2,1,0"), dealt("2x3"), shuffled("2x3", 1),
           dealt("3,5"), shuffled("3,5", 2), dealt("2x2x2"), shuffled("2x2x2", 3), dealt("4x2"),
           shuffled("4x2", 4), shuffled("((1,2),3),(2,1)", 5), shuffled("1x4", 6),
           shuffled("4x1", 7), shuffled("5", 8)]


def test_the_layouts_have_orders_of_their_own():
    assert all(layout.order for layout in LAYOUTS)


@pytest.mark.long
@pytest.mark.slow
@folded("layout", LAYOUTS)
@folded("collective, name", HIERARCHICAL)
def test_proof(collective, name, layout):
    for root in {0, layout.size // 2, layout.size - 1} if COLLECTIVES[collective].rooted else {0}:
        made = schedule(collective, name, topology=layout, root=root)
        plain = schedule(collective, name, topology=layout.plain, root=layout.positions[root])
        # The proof compares these with what it finds: an order costs nothing.
        assert (made.rounds, made.sent, made.nblocks) == (plain.rounds, plain.sent, plain.nblocks)
        proof = verify(made)
        assert (proof.replicas_identical or collective != "allreduce"
                or ALGORITHMS[collective][name].exact_only)


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize(("collective", "name"), [
    (collective, name) for collective, name in HIERARCHICAL if COLLECTIVES[collective].rooted])
def test_proof_for_all_roots(collective, name, root):
    verify(schedule(collective, name, topology="(1,2),(2)@3,0,4,2,1", root=root))


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_rank_order_is_lost_and_its_proof_refuses(collective):
    made = schedule(collective, "leader", topology="2x2@0,2,1,3")
    assert not verify(made).rank_order
    with pytest.raises(ProofError, match="rank order"):
        verify(made, commutative=False)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_hierarchical_builder_of_ones_own_for_any_collective(kind):
    """What has no hierarchical algorithm in the table is put into terms of ranks too."""
    entry = replace(ALGORITHMS[kind]["binomial"], hierarchical=True, rounds=None, sent=None,
                    build=lambda rank, topology, root:
                    ALGORITHMS[kind]["binomial"].build(rank, topology.size, root))
    for root in range(6):
        verify(schedule(kind, entry, topology="2x3@4,0,3,1,5,2", root=root))


def test_messages_stay_inside_groups_where_they_did():
    made = schedule("allreduce", "rails", topology="4x4@0-12/4,1-13/4,2-14/4,3-15/4")
    for rank in range(16):
        mine = next(group for group in made.topology.groups() if rank in group)
        crossing = [step.peer for steps in made.program(rank).rounds for step in steps
                    if step.kind == SEND and step.peer not in mine]
        # Only with ranks that have the same place in the other groups.
        assert crossing and {peer // 4 for peer in crossing} == {rank // 4}


def test_an_order_that_is_none_changes_nothing():
    plain, same = (schedule("allgather", "rails", topology=t) for t in ("2x3", "2x3@0-5"))
    assert plain == same and str(plain) == str(same) and plain.digest == same.digest
    other = schedule("allgather", "rails", topology="2x3@0-4/2,1-5/2")
    assert other != plain and other.digest != plain.digest
    assert "topology=2x3@0-4/2,1-5/2" in other.title


def test_only_hierarchical_algorithms_look_at_the_order():
    assert schedule("allreduce", "ring", topology="2x2@0,2,1,3") == schedule("allreduce", "ring", 4)


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_large_programs_are_the_same_size_and_made_quickly(collective, name):
    layout = dealt("64x64")
    plain = schedule(collective, name, topology=layout.plain).program(layout.positions[67])
    start = time.perf_counter()
    made = schedule(collective, name, topology=layout).program(67)
    assert time.perf_counter() - start < 5  # what takes p times as long takes minutes
    messages = [[(step.peer, sum(span.stop - span.start for span in step.spans))
                 for steps in program.rounds for step in steps if step.peer >= 0]
                for program in (plain, made)]
    assert messages[1] == [(layout.order[peer], count) for peer, count in messages[0]]
    assert len(made.scratch) == len(plain.scratch)


def test_a_bad_order_is_refused():
    with pytest.raises(ArgumentError, match="topology: .*every rank"):
        schedule("allreduce", "rails", topology="2x2@0,0,1,3")
    with pytest.raises(ArgumentError, match="4 ranks.*6"):
        schedule("allreduce", "rails", 6, topology="2x2@0,2,1,3")


# The table: what it says about algorithms fits together
ENTRIES = [pytest.param(collective, name, entry, id=f"{collective}-{name}")
           for collective, table in ALGORITHMS.items() for name, entry in table.items()]


def test_every_collective_has_algorithms():
    assert set(ALGORITHMS) == set(COLLECTIVES) and all(ALGORITHMS.values())
    assert algorithm_names()["barrier"] == tuple(ALGORITHMS["barrier"])


@folded("collective, name, entry", ENTRIES)
def test_an_entry_fits_together(collective, name, entry):
    reduces = COLLECTIVES[collective].reduces
    assert find(collective, name) is entry and entry.build.__doc__
    assert reduces or not (entry.rank_order or entry.exact_only or entry.chain
                           or entry.reproducible)
    assert not (entry.exact_only and entry.reproducible)
    assert not entry.reproducible or entry.rank_order and not entry.hierarchical
    assert {*entry.picks, *entry.reproducible} <= {SMALL, LARGE}
    assert not (entry.picks and entry.hierarchical)  # a few ranks may have one group only


@folded("collective, name, entry", ENTRIES)
def test_parameters_have_other_values_to_measure_and_to_prove(collective, name, entry):
    assert entry.params.keys() == entry.variants.keys()
    for key, (measured, edges) in entry.variants.items():
        assert len({entry.params[key], *measured}) >= 2
        assert min(*measured, *edges) in (1, 2) and not set(measured) & set(edges)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_some_algorithms_stand_for_the_others(collective):
    assert picks(collective, large=False) and picks(collective, large=True)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_one_algorithm_is_reproducible_for_each_length(collective):
    for length in (SMALL, LARGE):
        marked = [e for e in ALGORITHMS[collective].values() if length in e.reproducible]
        assert len(marked) == COLLECTIVES[collective].reduces


def test_reproducible_algorithms_are_named_for_short_messages_first():
    assert reproducible("allreduce") == ("recursive_doubling", "rabenseifner")
    assert reproducible("reduce") == ("rabenseifner",) and reproducible("bcast") == ()


def test_what_is_unknown_is_named_with_what_is_known():
    with pytest.raises(ArgumentError, match="allreduce, "):
        find("allredcue", "ring")
    with pytest.raises(ArgumentError, match="'ring'.*linear"):
        find("scan", "ring")


# Formulas: what they say is what they compute
FORMULA_LAYOUTS = [Topology.parse(text) for text in (
    "2x2", "2x3", "3x4", "4x8", "8x4", "2x2x2", "3x2x2", "4x2x4", "5x7", "6x16", "1x4", "4x1")]


def test_parameters():
    assert str(n - 1 + ceil_log(k, p)) == "n - 1 + ⌈logₖp⌉"
    assert (n - 1 + ceil_log(k, p))(82, n=8, k=3) == 7 + 5
    assert floor_log(k, p)(81, k=3) == 4 and floor_log(k, p)(80, k=3) == 3
    for wrong in (ceil_log(k, p), floor_log(k, p)):
        with pytest.raises(ArgumentError, match="at least 2"):
            wrong(1, k=1)


FORMS = [pytest.param(form, entry, id=f"{collective}-{name}-{what}")
         for collective, table in ALGORITHMS.items() for name, entry in table.items()
         for what, form in (("rounds", entry.rounds), ("sent", entry.sent),
                            ("blocks", entry.blocks)) if form is not None]


@folded("form, entry", FORMS)
def test_what_a_form_states_holds(form, entry):
    """Formulas are their own statements; of others, the function is compared with what is said."""
    if not isinstance(form, Relation):
        assert isinstance(form, Formula) or form is entry.blocks and entry.rounds is None
        return
    holds = {"=": int.__eq__, "≤": int.__le__, "≥": int.__ge__}[form.relation]
    compared = 0
    for where in FORMULA_LAYOUTS if entry.hierarchical else range(2, 300):
        for value in (2, 3, 4, 5, 8) if "k" in entry.params else (None,):
            params = {**entry.params, **({} if value is None else {"k": value})}
            number, stated = form(where, **params), form.statement(where, **params)
            if number is not None:
                compared += 1
                assert holds(number, stated), (where, params)
    assert compared > 5
    assert str(form).removeprefix(form.relation).strip() == str(form.statement)


def test_the_legend_names_every_symbol():
    letters = {"p", "P", "p′", "f", "m₀", "f₀", "g", "d", "mᵢ", "k", "n", "batch"}
    assert letters | {"[...]"} == {word for key in LEGEND for word in key.split(", ")}
