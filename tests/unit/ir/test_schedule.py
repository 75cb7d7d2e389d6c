"""Schedules: steps, sizes, data flow, operators and order of reduction."""

import operator
import random
from functools import partial

import numpy
import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.calls.layouts import block_layout, pair_layout, split_layout, vector_counts
from hpccoll.errors import ArgumentError, HpccollError, ScheduleError
from hpccoll.ir.collectives import (
    ALLREDUCE,
    COLLECTIVES,
    IN,
    METHODS,
    OUT,
    TMP,
    Collective,
    block_counts,
    collective_named,
    method_named,
)
from hpccoll.ir.dataflow import consumers, fused_with_next
from hpccoll.ir.extents import (
    Extent,
    Local,
    Phase,
    SlotLayout,
    pack_extents,
)
from hpccoll.ir.lowering import cut_into, lower
from hpccoll.ir.operators import OPERATORS
from hpccoll.ir.order import (
    by_lane,
    chain_waits,
    lane_numbers,
    lanes,
    one_after_another,
    pasts,
    waits,
)
from hpccoll.ir.passes import concatenate, relabel_ranks, reverse
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Schedule, at, copy, recv, reduce, send
from hpccoll.ir.sizes import Size, UndecidedError, maximum
from hpccoll.runtime.execution.compiled_plan import encode_any_size, encode_segments


# Schedules as text and as values
@pytest.mark.parametrize("step, text", [
    (send(3, at(OUT, 2)), "send 3 out[2]"),
    (send(3, at(OUT, 2, 5), at(TMP, 0)), "send 3 out[2:5] tmp[0]"),
    (send(3), "send 3"),
    (recv(1, at(OUT, 0)), "recv 1 out[0]"),
    (recv(1), "recv 1"),
    (recv(1, at(OUT, 0), reduce=LEFT), "recv 1 out[0] (arriving op mine)"),
    (recv(1, at(OUT, 0), reduce=RIGHT), "recv 1 out[0] (mine op arriving)"),
    (copy(at(OUT, 0, 2), at(IN, 0, 2)), "copy out[0:2] <- in[0:2]"),
    (reduce(at(OUT, 0), at(TMP, 1)), "reduce out[0] <- tmp[1] (arriving op mine)"),
    (reduce(at(OUT, 0), at(TMP, 1), RIGHT), "reduce out[0] <- tmp[1] (mine op arriving)"),
])
def test_steps_read_like_sentences(step, text):
    assert str(step) == text


def test_text_form():
    assert str(schedule("allreduce", "ring", 2)) == """\
allreduce ring size=2 nblocks=2
rank 0
  0: copy out[0:2] <- in[0:2]
  1: send 1 out[0]; recv 1 out[1] (arriving op mine)
  2: send 1 out[1]; recv 1 out[0]
rank 1
  0: copy out[0:2] <- in[0:2]
  1: send 0 out[1]; recv 0 out[0] (arriving op mine)
  2: send 0 out[0]; recv 0 out[1]
"""


def test_title_names_what_matters():
    assert schedule("bcast", "knomial", 5, root=2, k=3).title == (
        "bcast knomial size=5 root=2 nblocks=1 k=3")
    assert schedule("alltoall", "bruck", 4).title == "alltoall bruck size=4 k=2"
    assert "topology=2x2" in schedule("allreduce", "rails", topology="2x2").title


def test_digest_changes_with_any_step_and_only_then():
    def build(rank, size, flip=0):
        other = 1 - rank
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(other, at(OUT, 0)),
                         recv(other, at(OUT, 0), reduce=RIGHT if rank == flip else LEFT))))

    one, same = (schedule("allreduce", build, 2) for _ in range(2))
    other = schedule("allreduce", lambda rank, size: build(rank, size, 1), 2)
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 16 and int(one.digest, 16) >= 0


def test_digests_are_what_they_were():
    # A schedule's digest is written into tuning files and traces: it must not depend on the run.
    assert schedule("allreduce", "ring", 4).digest == "3f58ea85682838eb"
    assert schedule("bcast", "binomial", 5, root=3).digest == "65c54ddc57235e13"


def test_equal_schedules_compare_equal_and_hash():
    assert schedule("allreduce", "ring", 4) == schedule("allreduce", "ring", 4)
    assert schedule("allreduce", "ring", 4) != schedule("allreduce", "ring", 5)
    assert hash(schedule("bcast", "knomial", 5)) == hash(schedule("bcast", "knomial", 5))


def test_a_schedule_checks_its_fields():
    ring = schedule("allreduce", "ring", 4)
    other = Collective("mine", "vector", ring.collective.given, ring.collective.wanted)
    for bad in ((other, 4, 0, 1), (ALLREDUCE, 0, 0, 1), (ALLREDUCE, 4, 4, 1),
                (ALLREDUCE, 4, 0, 0)):
        collective, size, root, nblocks = bad
        with pytest.raises(ArgumentError):
            Schedule(collective, "x", size, ring.build, root, nblocks)
    with pytest.raises(ArgumentError, match="rank: .*4.*0..3"):
        ring.program(4)


# Collectives as pre- and postconditions, checked against MPI's own words
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


# What local steps do with messages, and with each other's results
def lowered(*rounds, counts=(2, 2, 2), outs=None, scratch=()):
    """Lower rounds on blocks of the given counts in ``in`` and ``out``."""
    layout = SlotLayout({IN: pack_extents(IN, counts), OUT: pack_extents(OUT, outs or counts)},
                    lambda key: counts[key])
    return lower(Program(tuple(map(tuple, rounds)), scratch), layout)


def used(program, number=0):
    found = consumers(program.phases[number], program.landing)
    return found and [list(map(str, steps)) for steps in found]


def test_reductions_and_unpacking_can_use_messages_in_place():
    program = lowered([recv(1, at(OUT, 0), reduce=LEFT), send(1, at(OUT, 1)),
                       recv(2, at(OUT, 0), reduce=RIGHT)])
    assert used(program) == [["out<0+2> <- tmp<0+2> op out<0+2>"], [],
                             ["out<0+2> <- out<0+2> op tmp<2+2>"]]
    scattered = lowered([recv(1, at(OUT, 2), at(OUT, 0))])
    assert used(scattered) == [["out<4+2> <- tmp<0+2>", "out<0+2> <- tmp<2+2>"]]


@pytest.mark.parametrize("steps", [
    # The message stays in memory that is looked at later.
    [recv(1, at(OUT, 0)), reduce(at(OUT, 1), at(OUT, 0))],
    [recv(1, at(TMP, 0)), copy(at(OUT, 1), at(TMP, 0))],
    # Memory that is being sent is written.
    [recv(1, at(OUT, 0), reduce=LEFT), send(2, at(OUT, 0))],
    # A local step uses no message.
    [recv(1, at(OUT, 0), reduce=LEFT), reduce(at(OUT, 1), at(OUT, 2))],
])
def test_where_messages_must_be_received_first(steps):
    assert used(lowered(steps, scratch=(0,))) is None


def test_nothing_to_do_means_nothing_to_use():
    phase = lowered([send(1, at(OUT, 0))]).phases[0]
    assert consumers(phase, 0) == [[]]


def test_steps_that_go_on_with_a_result():
    x, y, a, b, c = (Extent(TMP, 10 * i, 5) for i in range(5))
    half = Extent(TMP, 2, 5)
    for steps, wanted in (
            ([], []), ([Local(x, a, b)], [False]),
            ([Local(x, a, b), Local(x, x, c), Local(x, a, x)], [True, True, False]),
            ([Local(x, a, b), Local(y, x, c), Local(y, y, b)], [True, True, False]),
            ([Local(x, a, b), Local(y, a, c)], [False, False]),
            ([Local(x, a, b), Local(x, x, x)], [False, False]),  # taken twice
            ([Local(x, a, b), Local(x, x, half)], [False, False]),  # and a part of it
            ([Local(x, a), Local(x, x, b), Local(y, x)], [False, False, False])):
        assert fused_with_next(steps) == wanted


# Operators as data
def test_names_are_those_of_mpi():
    assert set(OPERATORS) == {"sum", "prod", "max", "min", "land", "lor", "lxor", "band", "bor",
                              "bxor", "maxloc", "minloc"}
    assert all(name == op.name for name, op in OPERATORS.items())


@pytest.mark.parametrize("name, kinds", [
    ("sum", "iufc"), ("prod", "iufc"), ("max", "iuf"), ("min", "iuf"), ("land", "iub"),
    ("lor", "iub"), ("lxor", "iub"), ("band", "iu"), ("bor", "iu"), ("bxor", "iu"),
    ("maxloc", ""), ("minloc", "")])
def test_operators_are_defined_where_mpi_says(name, kinds):
    assert {kind for kind in "biufcVO" if OPERATORS[name].defined_on(kind)} == set(kinds)
    assert OPERATORS[name].pairs == name.endswith("loc")


# What rounds wait for: what is written, what the order of messages adds, and lanes
TO_ONE, TO_TWO, FROM_ONE = send(1, at(OUT, 0)), send(2, at(OUT, 0)), recv(1, at(OUT, 1))


def test_without_after_there_is_one_lane():
    assert waits(Program(((TO_ONE,), (TO_TWO,)))) == ()
    assert waits(lanes()) == ()


def test_lanes_are_dealt_out_behind_what_comes_before_them():
    program = lanes([(TO_ONE,), (FROM_ONE,)], [(TO_TWO,)], [], before=[(), (copy(at(OUT, 0),
                                                                                 at(IN, 0)),)])
    assert program.rounds[2:] == ((TO_ONE,), (TO_TWO,), (FROM_ONE,))
    assert program.after == ((), (0,), (1,), (1,), (2,)) == waits(program)
    assert lane_numbers(waits(program)) == [0, 0, 0, 1, 0]
    assert list(by_lane(waits(program))) == [[0, 1, 2, 4], [3]]
    assert pasts(waits(program)) == [0b0, 0b1, 0b11, 0b11, 0b111]


@pytest.mark.parametrize(("other", "order"), [
    (TO_ONE, (0,)), (TO_TWO, ()), (FROM_ONE, ()), (recv(1), ()), (send(1), (0,))])
def test_messages_of_one_rank_and_direction_keep_their_order(other, order):
    assert waits(Program(((TO_ONE,), (other,)), (), ((), ()))) == ((), order)


def test_what_is_waited_for_anyway_is_left_out():
    rounds = ((TO_ONE,), (TO_TWO,), (FROM_ONE,), (TO_ONE, TO_TWO))
    assert waits(Program(rounds, (), ((), (0,), (1,), (0, 1, 2)))) == ((), (0,), (1,), (2,))
    assert waits(Program(rounds, (), ((), (), (0,), (2, 2)))) == ((), (), (0,), (1, 2))


def test_programs_after_programs_wait_for_all_ends():
    two, one = lanes([(TO_ONE,)], [(TO_TWO,)]), Program(((FROM_ONE,), ()))
    assert one_after_another([one, one]) == ()
    assert one_after_another([two, one, two]) == ((), (), (0, 1), (2,), (3,), (3,))
    assert concatenate(two, one).after == ((), (), (0, 1), (2,))
    assert concatenate(one, one).after == ()
    assert chain_waits(3) == ((), (0,), (1,))


def test_passes_keep_lanes_or_say_that_they_cannot():
    two = lanes([(send(1),)], [(recv(1),)])
    assert relabel_ranks(two, [2, 0]).after == two.after
    with pytest.raises(ScheduleError, match="lanes.*reverse"):
        reverse(two)


def test_builders_may_count_with_numpy():
    """Sets of rounds are bits: those of NumPy's integers end with the 64th."""
    rounds = [()] * 80
    counted = [(), *((number,) for number in numpy.arange(79))]
    assert waits(Program(tuple(rounds), (), tuple(counted))) == chain_waits(80)


# Programs for blocks of any size equal the ones that are lowered for each size
PAIRS = [(collective, name) for collective, entries in ALGORITHMS.items() for name in entries
         if collective != "barrier"]
N, M = Size.of(0), Size.of(1)


def test_arithmetic_is_that_of_numbers():
    values = [5, 9]
    for make in (lambda n, m: 3 * n + m - n, lambda n, m: 4 - n + m, lambda n, m: sum([n, m, 2]),
                 lambda n, m: (n + m) * 2 - m):
        assert make(N, M).at(values) == make(*values)
    assert N + M - M == N and N - N == 0 and not N - N and N and hash(N + M) == hash(M + N)


def test_a_comparison_has_one_result_for_all_sizes_or_none():
    assert N + M > N and N < 2 * N + 1 and N >= 1 and 0 < N and N <= N and not N > N
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(UndecidedError):
            compare(N, M)
        with pytest.raises(UndecidedError):
            compare(N, 2)
    assert maximum(N, 2 * N) == 2 * N and maximum(3, 2) == 3 and maximum(N + 4, M) == N + M + 4


def block_sizes(made, rank, source):
    """Sizes of the blocks of a vector, of the one of equal blocks, or one per rank; their
    layout."""
    size, name = made.size, made.collective.name
    for in_place in (False, True):
        if made.collective.payload == "vector":
            n = source.randint(made.nblocks, 40 * made.nblocks)
            counts = vector_counts(n, made.nblocks, source.choice((1, 4)))
            yield counts, partial(split_layout, made, rank, in_place=in_place)
        elif name == "alltoall":
            yield [source.randint(1, 50)], lambda one: pair_layout(
                made, rank, one * size, one * size, [i * one[0] for i in range(size)],
                [i * one[0] for i in range(size)])[0]
        else:
            yield [source.randint(1, 50)], lambda one, in_place=in_place: block_layout(
                made, rank, one * size, in_place)[0]
            if not made.uniform:
                counts = [source.randint(1, 30) for _ in range(size)]
                yield counts, lambda blocks, in_place=in_place: block_layout(
                    made, rank, blocks, in_place)[0]


def lowered_at(program, sizes):
    """Return a program that was lowered for any sizes, for these sizes of its blocks."""
    def number(size):
        return size.at(sizes) if isinstance(size, Size) else size

    def extent(one):
        return Extent(one.buffer, number(one.offset), number(one.count))

    def local(step):
        return Local(extent(step.into), extent(step.left),
                     extent(step.right) if step.right is not None else None)

    def message(one):
        return one._replace(extent=extent(one.extent))

    return program._replace(
        phases=tuple(Phase(tuple(map(local, phase.before)), tuple(map(message, phase.messages)),
                           tuple(map(local, phase.after))) for phase in program.phases),
        scratch=number(program.scratch), landing=number(program.landing))


def check_any_size(made, rank, counts, layout, segments, each):
    """Compare what is lowered and encoded for any size with that for some."""
    step, program, numbers = Size.of(len(counts)), made.program(rank), [*counts, each]
    general, special = (cut_into(program, layout(blocks), segments, one) for blocks, one in (
        ([Size.of(block) + (segments - 1) * step for block in range(len(counts))], step),
        ([count + (segments - 1) * each for count in counts], each)))
    for found, expected in zip(general, special, strict=True):
        shift = found.shift.at(numbers) if isinstance(found.shift, Size) else found.shift
        lowered = lowered_at(found.program, numbers)
        assert lowered.scratch >= expected.program.scratch and shift == expected.shift
        assert lowered._replace(scratch=0) == expected.program._replace(scratch=0)
    code, expected = encode_any_size(general, 2, 8, 4), encode_segments(special, 2, 8, 4)
    assert (code is None) == (expected is None)
    if code is not None:
        words = [word.at(numbers) if isinstance(word, Size) else word for word in code.words]
        assert words == list(expected.words) and code.ways == expected.ways


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", PAIRS)
def test_a_program_for_any_size_is_that_of_the_size(collective, name):
    source, compared = random.Random(f"{collective} {name}"), 0
    for size in range(1, 18):
        nodes = [f"{size - size // 2},{size // 2}", f"1x{size}"] if size > 1 else []
        for layout in nodes if ALGORITHMS[collective][name].hierarchical else [None]:
            try:
                made = schedule(collective, name, size, **({"topology": layout} if layout else {}))
            except HpccollError:
                continue  # it is not for so many ranks
            for rank in {0, size // 2, size - 1}:
                for counts, place in block_sizes(made, rank, source):
                    for segments in (1, 3):
                        each = source.randint(max(counts) + 1, 60)
                        check_any_size(made, rank, counts, place, segments, each)
                        compared += 1
    assert compared
