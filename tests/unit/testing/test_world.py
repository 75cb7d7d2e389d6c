"""Ranks in one process: worlds, loopback."""

import numpy
import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.collectives import ALLREDUCE, BARRIER, COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, send
from hpccoll.testing import every, layouts
from hpccoll.testing.exact import exact_reduction, inputs, sent_elements, wrong
from hpccoll.testing.world import Problem, Seat, StallError, interleave, run
from hpccoll.transport.loopback import Loopback

# The world of loopback ranks: right runs pass, and everything that can be wrong is found
RUNS = {
    "plain": {},
    "in place, eager": dict(in_place=True, eager=True),
    "gaps": dict(gap=3, seed=1),
    "segments, used in place": dict(segment=2, direct=True, seed=2),
    "repeated, segments, in place": dict(segment=2, in_place=True, gap=1, repeats=3, seed=3),
    "used in place, eager": dict(in_place=True, direct=True, eager=True, seed=4),
}


def problem(made, entry=None, uniform=False):
    """Sizes and data that suit a schedule: uneven blocks, some of them empty."""
    p, payload = made.size, made.collective.payload
    number = {"none": 0, "vector": 1, "blocks": p, "pairs": p * p}[payload]
    sizes = [(5 * key + 3) % 4 for key in range(number)] if number > 1 else [2 * p + 1] * number
    if uniform or made.uniform:
        sizes = [3] * number
    if entry and entry.rank_order:
        return Problem(made.collective, p, sizes, made.root, "affine", "c16")
    return Problem(made.collective, p, sizes, made.root, "sum", "f4")


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_algorithm_gives_exact_results(size, how):
    options = RUNS[how]
    # In place, a reduce-scatter of uneven blocks cannot be cut into segments; the planner knows.
    front = bool(options.get("in_place") and options.get("segment"))
    for entry, made in every(size, None if size < 5 else range(2, 3)):
        uniform = front and made.collective.name == "reduce_scatter"
        assert not run(made, problem(made, entry, uniform), **options), made.title


@pytest.mark.parametrize("op, dtype", [
    ("prod", "f8"), ("max", "i2"), ("min", "f4"), ("land", "?"), ("band", "u1"), ("lxor", "i8"),
    ("sum", "c8"), ("sum", "f2"), ("maxloc", [("value", "f8"), ("index", "i4")])])
def test_operators_and_types(op, dtype):
    for name in ("ring", "rabenseifner", "recursive_doubling"):
        made = schedule("allreduce", name, 5)
        assert not run(made, Problem(ALLREDUCE, 5, [13], 0, op, numpy.dtype(dtype)))


# -- what is wanted -----------------------------------------------------------------------------
def test_problems_say_what_mpi_says():
    part = [inputs("sum", "i8", rank, 3, 6) for rank in range(3)]
    total = exact_reduction("sum", "i8", range(3), 3, 6)

    def posed(name, sizes, root=1):
        return Problem(COLLECTIVES[name], 3, sizes, root)

    def same(found, expected):
        return len(found) == len(expected) and not any(map(wrong, found, expected))

    assert same(posed("allreduce", [6]).input_blocks(2), [part[2]])
    assert same(posed("allreduce", [6]).expected_blocks(2), [total])
    assert same(posed("reduce", [6]).expected_blocks(1),
                [total]) and not posed("reduce", [6]).expected_blocks(0)
    assert same(posed("reduce_scatter", [1, 2, 3]).input_blocks(0),
                [part[0][:1], part[0][1:3], part[0][3:]])
    assert same(posed("reduce_scatter", [1, 2, 3]).expected_blocks(2), [total[3:]])
    assert same(posed("scan", [6]).expected_blocks(1), [part[0] + part[1]])
    assert same(posed("exscan", [6]).expected_blocks(2), [part[0] + part[1]])
    assert not posed("exscan", [6]).expected_blocks(0)
    blocks = [sent_elements("i8", rank, rank + 1) for rank in range(3)]
    assert same(posed("allgather", [1, 2, 3]).input_blocks(1), [blocks[1]])
    assert same(posed("allgather", [1, 2, 3]).expected_blocks(1), blocks)
    assert same(posed("gather", [1, 2, 3]).expected_blocks(1), blocks)
    assert not posed("gather", [1, 2, 3]).expected_blocks(0)
    assert same(posed("bcast", [4]).input_blocks(1), [sent_elements("i8", 1, 4)])
    assert not posed("bcast", [4]).input_blocks(0)
    assert same(posed("bcast", [4]).expected_blocks(0), [sent_elements("i8", 1, 4)])
    assert same(posed("scatter", [1, 2, 3]).expected_blocks(2), [sent_elements("i8", 1, 3, to=2)])
    pairs = posed("alltoall", range(9))
    assert same(pairs.input_blocks(1), [sent_elements("i8", 1, 3 + to, to=to) for to in range(3)])
    assert same(pairs.expected_blocks(1),
                [sent_elements("i8", frm, 3 * frm + 1, to=1) for frm in range(3)])
    assert not posed("barrier", []).input_blocks(0) and not posed("barrier", []).expected_blocks(0)


# -- what is found ------------------------------------------------------------------------------
def faults(build, collective="allreduce", size=2, sizes=(3,), **options):
    made = schedule(collective, build, size)
    return run(made, Problem(COLLECTIVES[collective], size, sizes), **options)


def exchange(rank, size, reduce=LEFT):
    other = 1 - rank
    return Program(((copy(at(OUT, 0), at(IN, 0)),),
                    (send(other, at(OUT, 0)), recv(other, at(OUT, 0), reduce=reduce))))


def test_the_textbook_passes():
    assert not faults(exchange)


def test_wrong_results_are_counted():
    def alone(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),))
    assert faults(alone) == ["rank 0: 3 of 3 elements of block 0 are wrong",
                             "rank 1: 3 of 3 elements of block 0 are wrong"]


def test_wrong_order_is_wrong_for_operators_that_do_not_commute():
    made = schedule("allreduce", exchange, 2)
    assert not run(made, Problem(ALLREDUCE, 2, [3]))
    assert len(run(made, Problem(ALLREDUCE, 2, [3], 0, "affine", "c16"))) == 1


def test_a_stall_names_ranks_and_peers():
    def head_on(rank, size):
        return Program(((send(1 - rank, at(IN, 0)),), (recv(1 - rank, at(OUT, 0)),)))
    assert faults(head_on) == ["stalled: rank 0 in round 0 waits for 1; rank 1 in round 0 waits "
                               "for 0"]


def test_messages_of_another_size():
    def longer(rank, size):
        return Program(((send(1 - rank, at(IN, 0, 1 + rank)), recv(1 - rank, at(OUT, 0))),))
    made = schedule("allreduce", longer, 2, nblocks=2)
    found, = run(made, Problem(ALLREDUCE, 2, [4]))
    assert "message from rank" in found


def test_messages_nobody_waits_for():
    def token(rank, size):
        return Program(((recv(1),),)) if rank == 0 else Program(((send(0),), (send(0),)))
    found, = faults(token, "barrier", 2, ())
    assert found.startswith("stalled: rank 1 in round 1 waits for 0")


def test_seats_notice_every_byte_that_must_not_change():
    made = schedule("allgather", "ring", 2)
    posed = Problem(COLLECTIVES["allgather"], 2, (2, 3))
    seat = Seat(made, posed, 1, gap=2)
    seat.fill()
    assert [fault for fault in seat.faults() if "elements" not in fault] == []
    for start, block in zip(seat.outputs, seat.wanted):
        seat.memory[OUT].array[start:start + len(block)] = block
    assert list(seat.faults()) == []
    seat.memory[OUT].array[seat.outputs[1] - 1] = 0
    seat.memory[IN].array[0] = 0
    seat.memory[IN].zones[1][0] = 0
    seat.scratch.zones[0][-1] = 0
    assert list(seat.faults()) == [
        "rank 1: unexpected output was written", "rank 1: the input was overwritten",
        "rank 1: memory after in was overwritten", "rank 1: memory before scratch was overwritten"]


# -- the scheduler ------------------------------------------------------------------------------
def executions(made, posed, world):
    seats = [Seat(made, posed, rank) for rank in range(made.size)]
    for seat in seats:
        seat.fill()
    return [seat.execution(world.endpoint(seat.rank)) for seat in seats]


def test_a_missing_rank_stalls_the_others():
    made = schedule("barrier", "dissemination", 3)
    present = executions(made, Problem(BARRIER, 3), Loopback(3))[:2]
    with pytest.raises(StallError) as caught:
        interleave(present)
    assert set(caught.value.waiting) == {0, 1}
    assert any(2 in peers for _, peers in caught.value.waiting.values())


# Loopback that uses messages in place: what sets it apart (its rules are in tests/contract)
def start(world, rank, *postings, tag=0):
    batch = world.endpoint(rank).batch(postings, tag, False)
    batch.start()
    return batch


def test_every_algorithm_comes_with_all_roots_and_layouts():
    names = [(made.collective.name, made.root) for _, made in every(3)]
    assert {name for name, _ in names} == set(ALGORITHMS)
    assert {root for name, root in names if name == "bcast"} == {0, 1, 2}
    assert {root for name, root in names if name == "allreduce"} == {0}
    hierarchical = [made for entry, made in every(4, range(1)) if entry.hierarchical]
    plain = sum(entry.hierarchical for table in ALGORITHMS.values() for entry in table.values())
    assert len(hierarchical) == plain * len(layouts(4))
