"""Well-formed programs: whatever a builder returns, a verdict that names the place."""

import itertools

import pytest

from hpccoll.algorithms import Algorithm, schedule
from hpccoll.errors import ArgumentError, ProofError, ScheduleError
from hpccoll.ir import wellformed
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import (
    LEFT,
    RIGHT,
    Program,
    Span,
    Step,
    at,
    copy,
    recv,
    reduce,
    send,
)
from hpccoll.ir.wellformed import program_of
from hpccoll.proof.verifier import verify

TAKE = copy(at(OUT, 0), at(IN, 0))


def right(rank, size):
    side = LEFT if rank else RIGHT
    return Program(((TAKE,), (send(1 - rank, at(OUT, 0)), recv(1 - rank, at(OUT, 0), reduce=side))))


def made(build, size=2, **options):
    return schedule("allreduce", build, size, **options)


def rounds(*each, scratch=()):
    return lambda rank, size: Program(tuple(each), scratch)


def refused(complaint, build, at=(None, None), **options):
    """The error of a builder, which verify passes on with the same place."""
    with pytest.raises(ScheduleError, match=complaint) as caught:
        program_of(made(build, **options), 0)
    error = caught.value
    assert (error.rank, error.round) == (0, at[0]) and "size=2" in str(error)
    assert error.step == at[1]
    with pytest.raises(ProofError, match=complaint) as again:
        verify(made(build, **options))
    assert (again.value.rank, again.value.round, again.value.step) == (0, *at)
    return error


@pytest.mark.parametrize("returned, what", [
    (None, "nothing"), (7, "an int"), ([[TAKE]], "a list"), (((TAKE,),), "a tuple"),
    ((s for s in [(TAKE,)]), "a generator")])
def test_what_is_no_program(returned, what):
    refused(f"the builder returned {what}, expected a Program", lambda rank, size: returned)


def test_a_builder_that_is_a_generator():
    def build(rank, size):
        yield (TAKE,)
    refused("generator", build)


@pytest.mark.parametrize("error", [KeyError("k"), RecursionError("deep"), ZeroDivisionError(),
                                   SystemExit(3), MemoryError(), StopIteration()])
def test_a_builder_that_raises(error):
    def build(rank, size):
        raise error
    assert refused(f"the builder raised {type(error).__name__}", build).__cause__ is error
    with pytest.raises(ProofError) as caught:
        verify(made(build))
    assert caught.value.__cause__ is error


def test_our_own_errors_and_an_interrupt_pass():
    with pytest.raises(ArgumentError, match="k: .*2"):
        verify(schedule("allgather", "bruck", 4, k=1))

    def interrupted(rank, size):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        verify(made(interrupted))


def test_only_one_rank_is_wrong():
    with pytest.raises(ProofError, match="ZeroDivisionError") as caught:
        verify(made(lambda rank, size: right(rank, size) if rank == 0 else 1 // 0))
    assert caught.value.rank == 1


@pytest.mark.parametrize("steps, complaint, at", [
    (5, "round.*tuple.*int", (0, None)),
    ((None,), "step.*nothing", (0, None)),
    (TAKE, "step.*round", (0, str(TAKE))),
    (({"kind": "send"},), "step, got a dict", (0, "{'kind': 'send'}")),
    (("send 1 out[0]",), "step, got a str", (0, "send 1 out[0]")),
    (itertools.repeat(TAKE), "tuple.*repeat", (0, None)),
    ((Step("isend", 1, (at(OUT, 0),)),), "'isend'",
     (0, "isend out[0] <- ")),
    ((Step([], 1, (at(OUT, 0),)),), r"kind \[\]", (0, "[] out[0] <- ")),
    ((recv(1, at(OUT, 0), reduce="Left"),), "side 'Left'", (0, "recv 1 out[0] (side 'Left')")),
    ((recv(1, at(OUT, 0), reduce=True),), "side True", (0, "recv 1 out[0] (side True)")),
    ((reduce(at(OUT, 0), at(IN, 0), ""),), "side ''", (0, "reduce out[0] <- in[0]")),
    ((send(None, at(IN, 0)),), "peer.*None", (0, "send None in[0]")),
    ((send("1", at(IN, 0)),), "peer.*'1'", (0, "send 1 in[0]")),
    ((send(1.0, at(IN, 0)),), "peer.*1.0", (0, "send 1.0 in[0]")),
    ((send(-1, at(IN, 0)),), "-1 .*another rank", (0, "send -1 in[0]")),
    ((send(2 ** 70, at(IN, 0)),), "another rank", (0, f"send {2 ** 70} in[0]")),
    ((send(0, at(IN, 0)),), "0 .*another rank", (0, "send 0 in[0]")),
    ((copy(at("buf", 0), at(IN, 0)),), r"buf\[0\]", (0, "copy buf[0] <- in[0]")),
    ((TAKE, recv(1, at(OUT, 0, 10 ** 12))), r"out\[0:1000000000000\].*1 slots",
     (0, "recv 1 out[0:1000000000000]")),
    ((TAKE, copy(at(OUT, 0, 10 ** 9), at(IN, 0))), "exist",
     (0, "copy out[0:1000000000] <- in[0]")),
    ((copy(at(OUT, -1), at(IN, -1)),), r"out\[-1\]", (0, "copy out[-1] <- in[-1]")),
    ((copy(at(OUT, 1, 0), at(IN, 1, 0)),), "exist", (0, "copy out[1:0] <- in[1:0]")),
    ((copy(at(OUT, 0., 1.), at(IN, 0)),), "integers",
     (0, "copy out[0.0] <- in[0]")),
    ((Step("send", 1, at(IN, 0)),), "span, got a str", (0, "send 1 in 0 1")),
    ((Step("copy", -1, (at(OUT, 0),)),), "one source span",
     (0, "copy out[0] <- ")),
    ((copy(at(OUT, 0), at(IN, 0, 0)),), "1 slots.*0 slots",
     (0, "copy out[0] <- in[0:0]")),
    ((recv(1, at(IN, 0)),), "read-only", (0, "recv 1 in[0]"))])
def test_steps_that_are_none(steps, complaint, at):
    refused(complaint, rounds(steps), at)


def test_a_span_that_cannot_even_be_printed():
    step = copy(Span(OUT, "0", "1"), at(IN, 0))
    error = refused("integers", rounds((step,)),
                    (0, "('copy', -1, (Span(buffer='out', start='0', stop='1'),), "
                        "(Span(buffer='in', start=0, stop=1),), '')"))
    assert "out['0':'1']" in str(error)


def test_the_round_is_the_program_s_own():
    # Rounds that only copy the input leave no trace in a lowered program, but they count.
    refused("2 slots.*1 slots", rounds(
        (TAKE,), (), (copy(at(OUT, 0, 2), at(IN, 0)),)), (2, "copy out[0:2] <- in[0]"), nblocks=2)


@pytest.mark.parametrize("scratch, complaint", [
    (None, "scratch.*nothing"),
    (3, "scratch.*int"),
    (itertools.count(), "count"),
    ((99,), r"tmp\[0\].*block 99"),
    ((0, -1), r"tmp\[1\].*block -1"), (("a",), "'a'"),
    (range(10 ** 9), "1000000000.*4194304")])
def test_scratch_that_is_none(scratch, complaint):
    refused(complaint, rounds((TAKE,), scratch=scratch))


@pytest.mark.parametrize(("after", "complaint", "number"), [
    (None, "after.*nothing", None),
    (((),), "1 rounds.*2", None),
    (((), 0), "round.*tuple.*int", 1),
    (((), (1,)), "waits.*round 1", 1),
    (((-1,), ()), "waits.*round -1", 0),
    (((), ("0",)), "round '0'", 1),
    (((), (0.,)), "round 0.0", 1)])
def test_rounds_that_wait_for_none(after, complaint, number):
    refused(complaint, lambda rank, size: Program(((TAKE,), ()), (), after), (number, None))


def test_scratch_of_a_barrier_has_no_size():
    build = Algorithm(rounds((), scratch=(0,)))
    with pytest.raises(ScheduleError, match="no blocks"):
        program_of(schedule("barrier", build, 2), 0)


@pytest.mark.parametrize("each", [itertools.repeat((TAKE,)), (s for s in [(TAKE,)])])
def test_rounds_without_an_end(each):
    refused("rounds.*tuple", lambda rank, size: Program(each))


def test_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(wellformed, "MOST_STEPS", 100)
    refused("more than 100", rounds(*[(TAKE,)] * 101))
    refused("more than 100", rounds((TAKE,) * 101), (0, None))
    refused("more than 100", rounds(*[(TAKE,) * 40] * 3), (2, None))
    program_of(made(rounds(*[(TAKE,)] * 50)), 0)
    monkeypatch.setattr(wellformed, "MOST_SLOTS", 10)
    refused("11 blocks.*10", right, nblocks=11)


def test_scratch_for_pairs_is_sized_like_a_block_of_this_rank():
    def build(key, uniform=False):
        return schedule("alltoall", Algorithm(rounds(scratch=(key,)), uniform=uniform), 3)
    for key in (0, 1, 2, 3, 6):
        program_of(build(key), 0)
    with pytest.raises(ScheduleError, match="rank 1.*rank 2"):
        program_of(build(5), 0)
    program_of(build(5, True), 0)
