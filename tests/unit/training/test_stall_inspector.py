"""Notices between ranks, and who has not brought what."""

import time

import pytest

from hpccoll.training.stall_inspector import (
    FAILED,
    MOST_NAMES,
    Control,
    Diagnosis,
    Notice,
    StallInspector,
)
from support.threads import run_ranks


def driven(stalls, control, over):
    end = time.monotonic() + 10
    while not over() and time.monotonic() < end:
        for notice in control.poll():
            stalls.process(notice)
        time.sleep(0.0005)


def test_notices_arrive_with_their_sender():
    def rank(comm):
        control, heard = Control(comm), []
        if comm.Get_rank() == 1:
            control.send_to_others(FAILED, ["text", 3])
        end = time.monotonic() + 10
        while comm.Get_rank() != 1 and not heard and time.monotonic() < end:
            heard += control.poll()
        comm.Barrier()
        return heard

    first, silent, third = run_ranks(3, rank)
    assert silent == [] and first == third == [(FAILED, 1, ["text", 3])]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_who_ask_hear_who_lacks_what(size):
    def rank(comm):
        me, control = comm.Get_rank(), Control(comm)
        stalls = StallInspector(control, lambda step, names: (
            [name for name in names if name == "w" and me == size - 1], f"at step {step + me}"))
        stalls.query(4, ["v", "w"])
        driven(stalls, control, lambda: stalls.diagnosis is not None)
        done = comm.Ibarrier()
        driven(stalls, control, done.Test)  # others may still ask
        return stalls.diagnosis

    for diagnosis in run_ranks(size, rank):
        assert diagnosis.missing_ranks == {"w": [size - 1]} and diagnosis.ranks == (size - 1,)
        assert f"'w' is missing on rank {size - 1}" in str(diagnosis)
        assert f"rank {size - 1}: at step {4 + size - 1}" in str(diagnosis)


def test_a_rank_that_does_not_answer_is_named_when_asked_again():
    def rank(comm):
        me, control = comm.Get_rank(), Control(comm)
        stalls = StallInspector(control, lambda step, names: ([], "here"))
        if me == 2:
            comm.Barrier()
            list(control.poll())
            return None
        end = time.monotonic() + 10
        while stalls.diagnosis is None and time.monotonic() < end:
            stalls.query(0, ["w"])
            for _ in range(20):
                for notice in control.poll():
                    stalls.process(notice)
                time.sleep(0.001)
        for _ in range(50):
            for notice in control.poll():
                stalls.process(notice)
            time.sleep(0.001)
        comm.Barrier()
        return stalls.diagnosis

    for diagnosis in run_ranks(3, rank)[:2]:
        assert 2 in diagnosis.unresponsive and "did not answer" in str(diagnosis)


def test_questions_are_short():
    def rank(comm):
        asked = []
        stalls = StallInspector(Control(comm), lambda step, names: (asked.extend(names) or [], ""))
        stalls.query(0, map(str, range(1000)))
        return asked

    assert len(run_ranks(1, rank)[0]) == MOST_NAMES


def test_without_a_missing_array_every_place_is_said():
    text = str(Diagnosis({}, [], {0: "in reduce()", 1: "in reduce()", 2: "joined"}))
    assert text == "ranks 0-1: in reduce(); rank 2: joined"


def test_queries_that_a_dead_rank_never_answers_are_dropped():
    def rank(comm):
        stalls = StallInspector(Control(comm), lambda step, names: ([], "here"))
        for step in range(20 if comm.Get_rank() == 0 else 0):
            for _ in range(3):
                stalls.query(step, ["w"])
        comm.Barrier()
        # A late answer to a query of an earlier step.
        stalls.process(Notice("answer", 1, [[3, ["w"]], [[], "here"]]))
        return len(stalls._queries), sum(map(len, stalls._askers.values()))

    assert run_ranks(2, rank)[0] == (1, 1)
