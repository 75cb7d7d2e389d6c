"""Gradients in buckets: order, reports, stalls, negotiation and tuning while training runs."""

import json
import random
import threading
import time
from pathlib import Path

import numpy
import pytest

from hpccoll.errors import ArgumentError, ExchangeMismatch
from hpccoll.training.autotune import SAMPLE, WARM_UP, Autotune, Knobs, knobs_from_log, search
from hpccoll.training.buckets import ArraySpec, fitting_bucket_bytes, plan_buckets
from hpccoll.training.engine import Engine
from hpccoll.training.negotiation import (
    JOINED,
    MOST_SLOTS,
    NOTHING_NEW,
    STATUS,
    Offer,
    PriorityScheduler,
    Registry,
    completed_everywhere,
)
from hpccoll.training.stall_inspector import (
    FAILED,
    Control,
    Diagnosis,
    Notice,
    StallInspector,
)
from support.threads import run_ranks


# Who drives: tasks of a lane in order, a thread or whoever waits
class Request:
    """Complete after so many tests, or when told."""

    def __init__(self, tests=0):
        self.tests = tests

    def Test(self):
        self.tests -= 1
        return self.tests < 0


def task(log, name, requests):
    log.append(f"{name} begins")
    yield from requests
    log.append(f"{name} ends")


def engine_of(lanes=1, look=lambda: False, errors=None):
    return Engine(lanes, look, (errors if errors is not None else []).append)


def test_one_task_of_a_lane_runs_at_a_time():
    engine, log = engine_of(), []
    engine.submit(0, task(log, "a", [Request(2)]))
    engine.submit(0, task(log, "b", []))
    engine.wait(lambda: len(log) == 4, lambda: None)
    assert log == ["a begins", "a ends", "b begins", "b ends"] and not engine.is_busy


def test_lanes_do_not_wait_for_each_other():
    engine, log = engine_of(2), []
    engine.submit(0, task(log, "stuck", [Request(10 ** 9)]))
    engine.submit(1, task(log, "free", [Request(1)]))
    engine.wait(lambda: "free ends" in log, lambda: None)
    assert "stuck ends" not in log and engine.is_busy


def test_an_error_ends_all_tasks_and_is_told():
    errors, log = [], []
    engine = engine_of(2, errors=errors)

    def broken():
        yield Request(1)
        raise ValueError("broken")

    engine.submit(0, broken())
    engine.submit(1, task(log, "other", [Request(10 ** 9)]))
    engine.wait(lambda: bool(errors), lambda: None)
    assert str(errors[0]) == "broken" and not engine.is_busy


def test_a_thread_drives_while_nobody_waits():
    engine, log = engine_of(), []
    engine.start_thread(True)
    engine.submit(0, task(log, "a", [Request(3)]))
    end = time.monotonic() + 10
    while "a ends" not in log and time.monotonic() < end:
        time.sleep(0.001)
    engine.stop()
    assert log == ["a begins", "a ends"]


def test_without_a_thread_nothing_moves_by_itself():
    engine, log = engine_of(), []
    engine.start_thread(False)
    engine.submit(0, task(log, "a", []))
    assert not log
    engine.step()
    assert log == ["a begins", "a ends"]
    engine.stop()


def test_whoever_waits_takes_over_without_a_hop():
    names, engine = [], engine_of()
    engine.start_thread(True)

    def where():
        names.append(threading.current_thread())
        yield Request(1)
        names.append(threading.current_thread())

    engine.wait(lambda: len(names) == 2, lambda: None, where())
    engine.stop()
    assert set(names) == {threading.current_thread()}


def test_waiting_may_give_up():
    engine = engine_of()

    def idle():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        engine.wait(lambda: False, idle)
    engine.wait(lambda: True, idle)


# Votes: what is ready everywhere, and what ranks disagree on
def offer(name, shape=(3,), dtype="float32", op="sum"):
    return Offer(name, (shape,), dtype, op, 1.0, 1.0)


def known(size, names):
    registry = Registry(size)
    assert registry.add_descriptions([[offer(name) for name in names]] * size,
                                     [False] * size) == names
    return registry


def outcome(registries, ready, completed=None, joined=()):
    votes = [registry.bits(map(offer, names), False, rank in joined, (completed or [0] * 9)[rank])
             for rank, (registry, names) in enumerate(zip(registries, ready))]
    return numpy.bitwise_and.reduce(votes)


def test_what_all_ranks_have_is_agreed_in_the_order_of_slots():
    registries = [known(3, list("abcd")) for _ in range(3)]
    vote = outcome(registries, ["dcba", "abd", "bda"])
    assert [registry.ready_names(vote) for registry in registries] == [["a", "b", "d"]] * 3


def test_a_rank_without_data_agrees_to_everything():
    registries = [known(2, list("ab")) for _ in range(2)]
    vote = outcome(registries, ["b", ""], joined={1})
    assert registries[0].ready_names(vote) == ["b"] and not vote[STATUS] & JOINED
    assert outcome(registries, ["", ""], joined={0, 1})[STATUS] & JOINED


def test_something_new_is_seen_by_all():
    registry = known(2, ["a"])
    votes = [registry.bits([], False, False, 0), registry.bits([], True, False, 0)]
    assert not numpy.bitwise_and.reduce(votes)[STATUS] & NOTHING_NEW
    assert votes[0][STATUS] & NOTHING_NEW


@pytest.mark.parametrize("completed", [(0, 3, 2), (5, 5, 5), (64, 70, 64)])
def test_completed_transfers_are_those_of_the_slowest_rank(completed):
    registries = [known(3, ["a"]) for _ in range(3)]
    assert completed_everywhere(outcome(registries, ["", "", ""], completed)) == min(completed)


def test_an_array_is_ready_when_the_last_rank_describes_it():
    registry = Registry(3)
    assert registry.add_descriptions([[offer("a")], [], []], [False] * 3) == []
    assert registry.is_described(offer("a"), 0) and not registry.is_described(offer("a"), 1)
    assert registry.missing_ranks("a") == (1, 2)
    assert registry.add_descriptions([[], [offer("a")], []], [False, False, True]) == ["a"]
    assert registry.has_offer(offer("a")) and registry.missing_ranks("a") == ()


@pytest.mark.parametrize("other, said", [
    (offer("w", (4,)), "shapes ((3,),) and ((4,),)"),
    (offer("w", dtype="float64"), "dtype float32 and float64"),
    (offer("w", op="max"), "op sum and max")])
def test_a_disagreement_names_array_and_ranks(other, said):
    registry = Registry(3)
    with pytest.raises(ExchangeMismatch) as raised:
        registry.add_descriptions([[offer("w")], [other], [offer("w")]], [False] * 3)
    assert raised.value.arrays == ("w",) and raised.value.ranks == (0, 1, 2)
    for text in ("'w'", said, "ranks 0,2 and rank 1"):
        assert text in str(raised.value)


def test_a_new_shape_on_all_ranks_takes_the_place_of_the_old_one():
    registry = known(2, ["a", "b"])
    new = offer("a", (5, 5))
    assert not registry.has_offer(new)
    assert registry.add_descriptions([[new], []], [False] * 2) == []
    assert not registry.has_offer(offer("a"))  # who held it as it was must describe it now
    assert registry.add_descriptions([[], [new]], [False] * 2) == ["a"] and registry.has_offer(new)


def test_a_new_shape_on_one_rank_only_is_a_disagreement():
    registry = known(2, ["a"])
    registry.add_descriptions([[offer("a", (5,))], []], [False] * 2)
    with pytest.raises(ExchangeMismatch):
        registry.add_descriptions([[], [offer("a")]], [False] * 2)


def test_slots_are_bounded_and_the_least_recently_used_goes():
    registry = known(1, [f"n{number}" for number in range(MOST_SLOTS)])
    registry.ready_names(outcome([registry], [["n0"]]))
    registry.add_descriptions([[offer("new")]], [False])
    assert registry.has_offer(offer("n0")) and not registry.has_offer(offer("n1"))
    assert len(registry.slots) == MOST_SLOTS == len(set(registry.slots.values()))


# Pieces, priorities and credit
def picked(transfers):
    return [[(piece.name, piece.start, piece.stop) for piece in pieces] for pieces in transfers]


@pytest.mark.parametrize("limits, added, wanted", [
    ((40, 0, 0), [("a", 23, 4, 0, ())], [[("a", 0, 10)], [("a", 10, 20)], [("a", 20, 23)]]),
    # The credit may be overdrawn once.
    ((0, 0, 10), [("large", 100, 4, 0, ()), ("next", 1, 4, 0, ())], [[("large", 0, 100)]]),
    # An array of no elements, and one that must stay whole, are one piece.
    ((4, 4, 0), [("none", 0, 4, 0, ()), ("whole", 100, 4, 0, (), True)],
     [[("none", 0, 0)], [("whole", 0, 100)]]),
    # Neighbours of one kind share a transfer.
    ((0, 40, 0), [(name, 4, 4, 0, (kind,)) for name, kind in zip("abcdef", "ffifff")],
     [[(name, 0, 4) for name in names] for names in ("ab", "c", "de", "f")])])
def test_pieces_of_a_transfer(limits, added, wanted):
    urgency = PriorityScheduler(*limits)
    counts = [urgency.add(*one) for one in added]
    found = picked(urgency.pick())
    assert found == wanted
    pieces = [name for transfer in found for name, *_ in transfer]
    assert limits[2] or counts == [pieces.count(name) for name, *_ in added]


def test_what_is_needed_first_goes_first_within_the_credit():
    urgency = PriorityScheduler(40, 40, 80)
    urgency.add("late", 40, 4, 9, ())
    assert picked(urgency.pick()) == [[("late", 0, 10)], [("late", 10, 20)]]
    urgency.add("urgent", 5, 4, 0, ())
    assert urgency.pick() == []
    urgency.complete(1)
    assert picked(urgency.pick()) == [[("urgent", 0, 5)], [("late", 20, 30)]]
    urgency.complete(3)
    assert picked(urgency.pick()) == [[("late", 30, 40)]] and not len(urgency)


# The plan of buckets: every array once, limits kept, the order followed
def specs_of(counts, dtypes=("float32",)):
    sizes = {"float32": 4, "float64": 8, "int8": 1}
    return [ArraySpec(str(index), (count,), dtypes[index % len(dtypes)],
                      sizes[dtypes[index % len(dtypes)]]) for index, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [[], [0], [1], [5, 0, 7], list(range(50))])
@pytest.mark.parametrize("limit", [0, 1, 64, 10 ** 9])
@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "float64", "int8")])
def test_every_array_is_in_one_bucket_of_its_type(counts, limit, dtypes):
    specs = specs_of(counts, dtypes)
    order = list(range(len(specs)))
    random.Random(limit).shuffle(order)
    plan = plan_buckets(specs, limit, limit // 2, order)
    assert sorted(index for bucket in plan for index in bucket.members) == sorted(order)
    for bucket in plan:
        assert {specs[index].dtype for index in bucket.members} == {bucket.dtype}
        assert bucket.count == sum(specs[index].count for index in bucket.members)
        assert bucket.nbytes == sum(specs[index].nbytes for index in bucket.members)
        ends = [start + specs[index].count for start, index in zip(bucket.starts, bucket.members)]
        assert (0, *ends[:-1]) == bucket.starts and ends[-1] == bucket.count
        # In the order given, and closed as soon as it holds enough.
        assert list(bucket.members) == [index for index in order if index in bucket.members]
        held = sum(specs[index].nbytes for index in bucket.members[:-1])
        assert held < max(limit, 1) or not held


def test_the_first_bucket_is_small_and_the_last_arrays_come_first():
    plan = plan_buckets(specs_of([10] * 10), 120, 40)
    assert [bucket.members for bucket in plan] == [(9,), (8, 7, 6), (5, 4, 3), (2, 1, 0)]


@pytest.mark.parametrize(("mebibytes", "limit"), [
    (0, 25), (1, 1), (31, 1), (64, 2), (320, 10), (800, 25), (8000, 25)])
def test_buckets_that_fit(mebibytes, limit):
    specs = [ArraySpec(str(number), (mebibytes, 1 << 10)) for number in range(256)]
    assert fitting_bucket_bytes(specs) == limit << 20


# The search inside a run, its log and its replay
def found(start, seconds):
    asked, searching = [], search(start)
    knobs = next(searching)
    while True:
        asked.append(knobs)
        try:
            knobs = searching.send(seconds(knobs))
        except StopIteration as end:
            return end.value, asked


@pytest.mark.parametrize("start, seconds, wanted", [
    *((Knobs(8 << 20), lambda k, best=best: abs(k.bucket_bytes / best - 1)
       + abs(best / k.bucket_bytes - 1), Knobs(best)) for best in (1 << 20, 8 << 20, 64 << 20)),
    (Knobs(1 << 20), lambda k: 1.0, Knobs(1 << 20)),
    (Knobs(1 << 20), lambda k: 1 - (k.algorithm == "native") / 2, Knobs(1 << 20, 0, 0, "native")),
    (Knobs(128 << 10), lambda k: k.bucket_bytes, Knobs(64 << 10))])
def test_the_fastest_knobs_are_found(start, seconds, wanted):
    knobs, asked = found(start, lambda k: 1 + seconds(k))
    assert knobs == wanted and len(asked) < 12
    assert min(k.bucket_bytes for k in asked) >= 64 << 10
    assert all(k.partition_bytes == k.credit_bytes == 0 for k in asked)  # off stays off


def test_a_sample_leaves_the_first_steps_out():
    tuner = Autotune(Knobs(1 << 20), None, 0)
    times = [100.0] * WARM_UP + [1.0] * SAMPLE
    assert [tuner.add_step(t) for t in times] == [None] * (len(times) - 1) + [1.0]


def test_the_log_is_replayed(tmp_path):
    path = str(tmp_path / "log.jsonl")
    assert knobs_from_log(path) is None
    start = Knobs(1 << 20)
    tuner, other = Autotune(start, path, 0), Autotune(start, None, 1)
    while not tuner.done:
        assert knobs_from_log(path) is None  # not before it has ended
        seconds = 1.0 if tuner.knobs.bucket_bytes == 4 << 20 else 2.0 + tuner.knobs.bucket_bytes**-1
        assert tuner.next_knobs(seconds) == other.next_knobs(seconds)
    assert knobs_from_log(path) == tuner.knobs
    lines = list(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))
    assert lines[0]["seconds"] > 0 and lines[-1]["chosen"]


def test_another_file_is_no_log(tmp_path):
    path = tmp_path / "log"
    path.write_text("hello\n")
    with pytest.raises(ArgumentError, match="not an autotuning log"):
        knobs_from_log(str(path))
    path.write_text(json.dumps({"chosen": True}) + "\n")
    with pytest.raises(ArgumentError):
        knobs_from_log(str(path))


# Notices between ranks, and who has not brought what
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
        driven(stalls, control, lambda: not stalls.diagnosis.unresponsive)
        done = comm.Ibarrier()
        driven(stalls, control, done.Test)  # others may still ask
        return stalls.diagnosis

    for diagnosis in run_ranks(size, rank):
        assert diagnosis.missing_ranks == {"w": [size - 1]} and diagnosis.ranks == (size - 1,)
        assert f"'w' is missing on rank {size - 1}" in str(diagnosis)
        assert f"rank {size - 1}: at step {4 + size - 1}" in str(diagnosis)


def test_a_rank_that_does_not_answer_is_named():
    def rank(comm):
        me, control = comm.Get_rank(), Control(comm)
        stalls = StallInspector(control, lambda step, names: ([], "here"))
        if me == 0:  # also if it is the first one
            comm.Barrier()
            list(control.poll())
            return None
        stalls.query(0, ["w"])
        driven(stalls, control, lambda: len(stalls.diagnosis.unresponsive) == 1)
        done = time.monotonic() + 0.2
        driven(stalls, control, lambda: time.monotonic() > done)  # the other one may still ask
        comm.Barrier()
        return stalls.diagnosis

    for diagnosis in run_ranks(3, rank)[1:]:
        assert diagnosis.unresponsive == [0] and "rank 0 did not answer" in str(diagnosis)


def test_a_query_ends_the_one_before():
    """Of one that a dead rank never answers, nothing is left."""
    def rank(comm):
        stalls = StallInspector(Control(comm), lambda step, names: ([], "here"))
        assert stalls.diagnosis is None
        for step in range(20 if comm.Get_rank() == 0 else 0):
            stalls.query(step, ["w"])
        comm.Barrier()
        stalls.process(Notice("answer", 1, [[3, ["w"]], [["w"], "late"]]))
        return stalls.diagnosis

    assert run_ranks(2, rank)[0] == Diagnosis({}, [1], {0: "here"})
