"""Profiles: records of calls, their phases, and what is made from them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.profiled import LOWER_CASE, profiled_class
from hpccoll.errors import ArgumentError
from hpccoll.machine.identity import library_name
from hpccoll.measure.profiling import observer as module
from hpccoll.measure.profiling.merge import (
    MOST_TOLD,
    Straggler,
    correct_times,
    describe_stragglers,
    join,
    stragglers,
    waits_by_kind,
)
from hpccoll.measure.profiling.observer import OBSERVER, Observer, gather_records, stats
from hpccoll.measure.profiling.phases import activities, reduced_by_kind, spans
from hpccoll.measure.profiling.profile import CallRow, add_comparison, profile, rows_of
from hpccoll.measure.profiling.record import CallSums, read
from hpccoll.runtime.events.phase_events import Activity
from hpccoll.tools.call_trace import summary
from support.fresh_events import forget_events

from .made import ALLREDUCE, BCAST, REDUCE, SCAN, STARTED, moment, noting, rank_record


# Profiles: rows of kinds, sizes that share one, what a sample says, as text
def two_ranks():
    """Rank 1 comes two seconds late."""
    return profile(join([
        rank_record(0, [(ALLREDUCE, 1, 5), (BCAST, 6, 6.5)], waited=[(STARTED, 1.0)]),
        rank_record(1, [(ALLREDUCE, 3, 5), (BCAST, 6, 6.5)])]))


def test_a_row_for_each_kind_longest_first():
    found = two_ranks()
    assert [row.title for row in found.rows] == ["allreduce", "bcast", "allreduce_init"]
    row = found.rows[0]
    assert (row.calls, row.seconds, row.waiting) == (1, 3.0, pytest.approx(1.0))
    assert row.imbalance == pytest.approx(4 / 3)
    assert found.rows[2].waiting == 0.5  # in waits for a request
    assert found.seconds == 10.0 and found.collective_seconds == 4.0


def test_as_text_and_as_data():
    found = two_ranks()
    lines = str(found).splitlines()
    assert lines[0] == ("2 ranks: collectives took 40% of 10 s; hpccoll ran 50% of the calls; 38% "
                        "of the time in them was waiting, 25% for rank 1.")
    assert lines[2].split() == ["call", "bytes", "count", "time", "waits", "algorithm",
                                "max/mean"]
    assert lines[3].split() == ["Allreduce", "1K", "1", "3", "s", "33%", "ring", "1.33"]
    assert found.served_part == 0.5 and found.saved_seconds is None
    data = json.loads(json.dumps(found.as_json()))
    assert data["rows"][0]["title"] == "allreduce" and data["ranks"] == 2
    assert (data["served_part"], data["saved_seconds"]) == (found.served_part, None)


def test_one_rank_knows_of_no_waits():
    found = profile(join([rank_record(0, [(ALLREDUCE, 1, 5)], 2)]))
    assert found.rows[0].waiting is None
    assert "waits" not in str(found).splitlines()[2] and "waiting" not in found.summary()


def rows(count, served="ring"):
    return [CallRow("allreduce", 1 << size, 1 << size, "f8 sum", served, (10,), 2.0, 1.0, 1.5)
            for size in range(count)]


def test_many_sizes_share_a_row():
    assert rows_of(rows(4)) == tuple(rows(4))
    [row] = rows_of(rows(11))
    assert row.sizes == "1-1K" and row.calls == 110 and row.seconds == 22.0 and row.waiting == 11
    assert len(rows_of([*rows(11), *rows(2, "native")])) == 3


def test_objects_have_no_size():
    row = CallRow("bcast of objects", -1, -1, "", "objects", (1,), 1.0, None, 1.0)
    assert row.cells()[:2] == ("bcast", "objects")


def test_what_a_sample_says_is_summed_over_the_calls():
    found = two_ranks()
    found = add_comparison(found, {found.details[0]: (2.5, 0.25)})
    assert found.rows[0].ratio == 2.5 and found.rows[0].saved == 0.25
    assert found.rows[1].ratio is None
    assert (f"In a sample measured after the run, hpccoll saved 250 ms against {library_name()}."
            in str(found)) and found.as_json()["saved_seconds"] == 0.25
    [row] = rows_of(row._replace(ratio=2.0, saved=2.0) for row in rows(6))
    assert row.ratio == 2.0 and row.saved == 12.0


# Watched communicators: every call is counted, once, as what it is; nothing else changes
A, B = numpy.ones(4), numpy.empty(4)


@pytest.fixture
def comm(monkeypatch):
    forget_events()
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup(), tuning="off")
    yield comm
    if comm != MPI.COMM_NULL:
        comm.Free()


def counted(comm):
    """How often each method was called, and on how many bytes."""
    [record] = OBSERVER.record().communicators
    return {(kind.title, kind.nbytes): sums.calls for kind, sums in zip(record.kinds, record.sums)
            if sums.calls and not kind.title.endswith(" wait")}


def test_the_class_is_made_once_and_looks_like_the_other(comm):
    cls = type(comm)
    assert cls is profiled_class(hpccoll.Comm) and profiled_class(cls) is cls
    assert cls is not hpccoll.Comm and issubclass(cls, hpccoll.Comm)
    assert (cls.__name__, cls.__module__) == (hpccoll.Comm.__name__, hpccoll.Comm.__module__)
    assert cls.Allreduce.__doc__ == hpccoll.Comm.Allreduce.__doc__


def test_nobody_is_watched_unless_asked(monkeypatch):
    monkeypatch.delenv("HPCCOLL_PROFILE", raising=False)
    assert type(hpccoll.Comm(MPI.COMM_SELF)) is hpccoll.Comm
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    monkeypatch.setattr(OBSERVER, "paused", True)
    assert type(hpccoll.Comm(MPI.COMM_SELF)) is hpccoll.Comm


def test_communicators_made_from_it_are_watched_and_wrappers_share_a_record(comm):
    made = comm.Dup()
    assert type(made) is type(comm) and type(made.Create_cart([1])).__name__ == "Cart"
    made.Barrier()
    hpccoll.Comm(made).Barrier()
    assert counted(made) == {("barrier", 0): 2}
    made.Free()


@pytest.mark.parametrize("call, kind", [
    (lambda comm: comm.Allreduce(A, B), ("allreduce", 32)),
    (lambda comm: comm.Allreduce(MPI.IN_PLACE, B, op=MPI.MAX), ("allreduce", 32)),
    (lambda comm: comm.Bcast([A, 2, MPI.DOUBLE], root=0), ("bcast", 16)),
    (lambda comm: comm.Alltoallw([A, [0], [0], [MPI.DOUBLE]], [B, [0], [0], [MPI.DOUBLE]]),
     ("alltoallw", 32)),
    (lambda comm: comm.Iallreduce(A, B).Wait(), ("iallreduce", 32)),
    (lambda comm: comm.barrier(), ("barrier", 0)),
    (lambda comm: comm.allreduce(1), ("allreduce of objects", -1)),
    (lambda comm: comm.bcast("text", root=0), ("bcast of objects", -1)),
    (lambda comm: comm.allgather(obj := 1) and obj, ("allgather of objects", -1))])
def test_every_call_counts_once(comm, call, kind):
    for _ in range(3):
        call(comm)
    assert counted(comm) == {kind: 3}


@pytest.mark.parametrize("call, served", [
    (lambda comm: comm.bcast(1), "objects"), (lambda comm: comm.allgather(1), "native"),
    (lambda comm: comm.alltoall([1]), "native")])
def test_objects_of_mpi4py_count_as_native(comm, call, served):
    call(comm)
    [record] = OBSERVER.record().communicators
    assert [kind.served for kind in record.kinds] == [served]


def test_all_lower_case_collectives_are_watched():
    cls = profiled_class(hpccoll.Comm)
    assert "barrier" not in LOWER_CASE and all(name in vars(cls) for name in LOWER_CASE)


def test_requests_are_waited_for_and_persistent_ones_count_when_started(comm):
    request = comm.Allreduce_init(A, B)
    assert isinstance(request, MPI.Prequest)
    for _ in range(2):
        B[:] = 0
        request.Start()
        request.Wait()
        assert B.tolist() == A.tolist()
    request.Start()
    MPI.Request.Waitall([request])  # which knows nothing of it
    request.Free()
    assert counted(comm) == {("allreduce_init", 32): 3}
    [record] = OBSERVER.record().communicators
    assert dict(zip(record.kinds, record.sums))[
        record.kinds[0]._replace(title="allreduce_init wait")].seconds > 0


def test_a_request_keeps_its_buffers(comm):
    """A native request was made anew, with the other's handle."""
    request = comm.Iallreduce(numpy.ones(1000), out := numpy.zeros(1000))
    request.Wait()
    assert request == MPI.REQUEST_NULL and out.sum() == 1000


def test_calls_that_fail_are_not_counted(comm):
    with pytest.raises(hpccoll.HpccollError):
        comm.Allreduce(A, B[:3])
    comm.Barrier()
    assert counted(comm) == {("barrier", 0): 1}
    comm.Free()
    with pytest.raises(hpccoll.HpccollError, match="freed"):
        comm.Barrier()


def test_sizes_types_roots_and_operators_are_told_apart(comm):
    for array, op in ((A, MPI.SUM), (A[:2], MPI.SUM), (A.astype("f4"), MPI.SUM), (A, MPI.MAX)):
        for _ in range(2):
            comm.Allreduce(MPI.IN_PLACE, array.copy(), op)
    kinds = [(kind.nbytes, kind.what) for kind in OBSERVER.record().communicators[0].kinds]
    assert kinds == [(32, "f8 sum"), (16, "f8 sum"), (16, "f4 sum"), (32, "f8 max")]


# What a process notes, gathered; files at the program's end
def test_too_many_communicators_share_a_record(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMMS", 3)
    observer = Observer()
    assert [observer.number_of(MPI.COMM_SELF) for _ in range(5)] == [0, 1, 2, 2, 2]
    assert [comm.number for comm in observer.comms] == [0, 1, 0] and observer.comms[2].ranks == ()


@pytest.mark.parametrize("most, kept", [(100, 3), (2, 2)])
def test_gathered_records_are_cut(monkeypatch, most, kept):
    monkeypatch.setattr(module, "GATHERED", most)
    mine = rank_record(0, [(ALLREDUCE, number, number + 1.0) for number in range(3)], 1)
    [found] = gather_records(MPI.COMM_SELF, mine)
    assert len(found.communicators[0].calls) == kept
    assert found.communicators[0].sums == [CallSums(3, 3.0)]


def test_nobody_counts_unless_asked(monkeypatch):
    monkeypatch.delenv("HPCCOLL_PROFILE", raising=False)
    monkeypatch.delenv("HPCCOLL_TRACE", raising=False)
    with pytest.raises(ArgumentError, match="HPCCOLL_PROF"):
        hpccoll.Comm(MPI.COMM_SELF).stats()


def test_of_one_communicator(monkeypatch):
    forget_events()
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup())
    assert stats(comm, None, False).rows == ()
    comm.Barrier()
    for all_ranks in (False, True):
        assert [row.title for row in comm.stats(all_ranks).rows] == ["barrier"]
    comm.Free()


PROGRAM = """
import sys
from mpi4py import MPI
import hpccoll
comm = hpccoll.Comm(MPI.COMM_WORLD)
comm.Barrier()
comm.Split().allreduce(1)
if "finalize" in sys.argv:
    MPI.Finalize()
if "raise" in sys.argv:
    raise RuntimeError
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "finalize", "raise"])
def test_a_file_is_written_however_the_program_ends(tmp_path, end):
    folder = tmp_path / "deep" / "traces"
    subprocess.run([sys.executable, "-c", PROGRAM, end], check=not end == "raise", timeout=60,
                   env={"HPCCOLL_TRACE": str(folder), "PATH": "/bin",
                        "PYTHONPATH": str(Path(hpccoll.__file__).parents[1])},
                   capture_output=True)
    [record], ranks = read(folder)
    assert ranks == 1 and len(record.ahead) == 2
    assert [one.kinds[0].title for one in record.communicators] == [
        "barrier", "allreduce of objects"]


# What was done inside of calls, by the moments that were noted there
def record_of(*moments, calls=((ALLREDUCE, 1.0, 2.0), (SCAN, 3.0, 4.0)), **plan):
    """A record of two calls in which there were moments: second, activity, phase, segment."""
    return rank_record(1, calls, size=3, phases=noting(*moments, **plan))


def shown(record):
    one = record.communicators[0]
    return [(span.line, span.name, round(span.start, 6), round(span.stop, 6))
            for span in spans(one, activities(one))]


def test_an_activity_lasts_until_the_next_or_the_end_of_the_call():
    record = record_of(moment(1.1, Activity.SENDING), moment(1.2, Activity.WAITING),
                       moment(1.6, Activity.REDUCING), moment(1.7, Activity.SENDING, 1),
                       moment(1.8, Activity.DRAINING, 1), moment(3.5, Activity.COPYING))
    assert shown(record) == [
        (0, "phase 0", 1.1, 1.7), (0, "sending", 1.1, 1.2), (0, "waiting for rank 2", 1.2, 1.6),
        (0, "reducing", 1.6, 1.7), (0, "phase 1", 1.7, 2.0), (0, "sending", 1.7, 1.8),
        (0, "waiting for space at ranks 0, 2", 1.8, 2.0),
        (0, "phase 0", 3.5, 4.0), (0, "copying", 3.5, 4.0)]
    assert reduced_by_kind([record]) == pytest.approx({ALLREDUCE: 0.1, SCAN: 0.0})
    phase = next(spans(record.communicators[0], activities(record.communicators[0])))
    assert phase.details == {"of": "a plan", "to": [0], "from": [2]}


def test_moments_outside_of_calls_say_nothing():
    record = record_of(moment(0.5, Activity.WAITING), moment(2.5, Activity.REDUCING),
                       moment(4.5, Activity.REDUCING))
    assert shown(record) == [] and reduced_by_kind([record]) == {}
    for none in (record_of(calls=()), rank_record(1, [(ALLREDUCE, 1.0, 2.0)])):
        assert activities(none.communicators[0]) is None and reduced_by_kind([none]) == {}


def test_segments_in_flight_have_a_line_each():
    """Segments 0 and 2 follow each other, 1 runs beside them; between two there may be a pause."""
    record = record_of(
        moment(1.0, Activity.WAITING, 0, 0), moment(1.1, Activity.WAITING, 0, 1),
        moment(1.2, Activity.REDUCING, 0, 0), moment(1.3, Activity.WAITING, 0, 2),
        moment(1.4, Activity.REDUCING, 0, 1), moment(1.5, Activity.OVER, 0, 1),
        moment(1.8, Activity.REDUCING, 0, 2), moment(1.9, Activity.OVER, 0, 2),
        depth=2, segments=[0, 0, 0])
    assert [one for one in shown(record) if "phase" in one[1]] == [
        (0, "segment 0, phase 0", 1.0, 1.3), (0, "segment 2, phase 0", 1.3, 1.9),
        (1, "segment 1, phase 0", 1.1, 1.5)]
    assert reduced_by_kind([record])[ALLREDUCE] == pytest.approx(0.1 + 0.1 + 0.1)


def test_lanes_have_a_line_each():
    record = record_of(moment(1.0, Activity.WAITING, 0), moment(1.1, Activity.WAITING, 1),
                       moment(1.2, Activity.OVER, 1), moment(1.4, Activity.OVER, 0),
                       programs=[[[0, [0], [2]], [1, [2], [0]]]])
    assert shown(record) == [
        (0, "phase 0", 1.0, 1.4), (0, "waiting for rank 2", 1.0, 1.4),
        (1, "phase 1", 1.1, 1.2), (1, "waiting for rank 0", 1.1, 1.2)]


def test_who_only_sends_waits_for_those_it_sends_to():
    record = record_of(moment(1.0, Activity.WAITING), programs=[[[0, [0, 2], []]]])
    assert shown(record)[1][1] == "waiting for ranks 0, 2"


def test_the_first_call_of_a_full_ring_may_have_lost_its_beginning():
    found = moment(1.8, Activity.WAITING), moment(3.1, Activity.COPYING)
    assert len(shown(record_of(*found))) == 4
    assert shown(record_of(*found, whole=False)) == [
        (0, "phase 0", 3.1, 4.0), (0, "copying", 3.1, 4.0)]


def test_calls_may_be_noted_in_another_order():
    """A wait for a request is noted when it is over, and so may be a call before it."""
    record = record_of(moment(1.5, Activity.REDUCING), moment(3.5, Activity.COPYING),
                       calls=((SCAN, 3.0, 4.0), (ALLREDUCE, 1.0, 2.0)))
    assert reduced_by_kind([record]) == pytest.approx({ALLREDUCE: 0.5, SCAN: 0.0})
    assert activities(record.communicators[0]).calls.tolist() == [0, 1]


# Who comes last, how often and by how much
def three():
    """Rank 2 is late to three of four calls, by 1, 2 and 3 seconds; rank 0 to the last, a bit."""
    first = [0.0, 10.0, 20.0, 30.0]
    late = {0: [0, 0, 0, 0.5], 1: [0, 0, 0, 0], 2: [1, 2, 3, 0]}
    return [rank_record(rank, [(ALLREDUCE, begun + by, begun + 5)
                               for begun, by in zip(first, late[rank])], 3) for rank in late]


def test_each_rank_is_told_of_and_the_worst_comes_first():
    assert stragglers(join(three())) == [
        Straggler("WORLD", 2, 4, 3, 1.5, 3.0, 12.0),
        Straggler("WORLD", 0, 4, 1, 0.125, 0.5, 1.0),
        Straggler("WORLD", 1, 4, 0, 0.0, 0.0, 0.0)]


def test_in_words_and_as_data():
    text = ("On WORLD, rank 2 was last in 75% of 4 calls, on average 1.5 s after the first rank, "
            "at most 3 s; others waited 12 s for it in total.")
    found = profile(join(three()))
    assert text in found.remarks() and text in str(found)
    assert found.as_json()["stragglers"][0]["rank"] == 2
    traced = summary(join(three()), 3)
    assert text in traced.sentences() and traced.as_json()["stragglers"][0]["last"] == 3


def test_a_root_that_is_late_is_waited_for_and_a_leaf_is_not():
    """Of a broadcast from rank 1."""
    for rank, waits in ((1, 2.0), (0, 0.0)):
        records = [rank_record(one, [(BCAST, 3.0 if one == rank else 1.0, 9.0)]) for one in (0, 1)]
        found = {one.rank: one for one in stragglers(join(records))}
        assert (found[rank].last, found[rank].waits) == (1, waits)


@pytest.mark.parametrize("records", [
    [], [rank_record(0, [(ALLREDUCE, 1, 2)], 1)], [rank_record(0, []), rank_record(1, [])],
    [rank_record(rank, [(ALLREDUCE._replace(title="iallreduce"), rank, 9)]) for rank in (0, 1)]])
def test_where_nobody_meets_nobody_is_late(records):
    assert not describe_stragglers(stragglers(join(records)))


def test_only_the_worst_communicators_are_told_of():
    found = [Straggler(f"c{number}", 0, 1, 1, 1.0, 1.0, 9.0 - number) for number in range(6)]
    assert [text.split(",")[0] for text in describe_stragglers(found)] == [
        f"On c{number}" for number in range(MOST_TOLD)]


def test_the_parts_of_a_split_have_one_name_and_are_told_of_each():
    found = [Straggler("communicator of 2", rank, 1, 1, 1.0, 1.0, 9.0 - rank, rank // 2 * 2)
             for rank in range(4)]
    assert [text.split(" was last")[0] for text in describe_stragglers(found)] == [
        "On communicator of 2, rank 0", "On communicator of 2, rank 2"]


# Records of ranks, joined: which calls belong together, and who waited for whom
def waits_of(kind, starts):
    """Each rank's wait in one call."""
    joined = join([rank_record(rank, [(kind, start, 9.0)], len(starts))
                   for rank, start in enumerate(starts)])
    return joined.matched[0].waits[:, 0].tolist()


@pytest.mark.parametrize("kind, waits", [
    (ALLREDUCE, [3, 0, 2]),  # for everybody
    (BCAST, [3, 0, 2]),  # for the root, which is 1 and the last
    (BCAST._replace(root=0), [0, 0, 0]),  # it came first
    (REDUCE, [3, 0, 0]),  # only the root waits
    (SCAN, [0, 0, 2]),  # for the ranks before
    (ALLREDUCE._replace(title="iallreduce"), [0, 0, 0])])
def test_a_rank_waits_for_those_that_it_needs(kind, waits):
    assert waits_of(kind, [1.0, 4.0, 2.0]) == waits


def test_a_wait_ends_with_the_call():
    """A rank may be let go before the last one has come: it only sends."""
    joined = join([rank_record(0, [(ALLREDUCE, 1, 5)]), rank_record(1, [(ALLREDUCE, 8, 9)])])
    assert joined.matched[0].waits[:, 0].tolist() == [4, 0]


def test_calls_belong_together_by_their_number():
    """One rank has forgotten its first call, and starts a request in between."""
    one = rank_record(0, [(ALLREDUCE, 1, 2), (BCAST, 3, 4), (ALLREDUCE, 5, 6)])
    two = rank_record(1, [(ALLREDUCE, 1, 2), (BCAST, 3, 4), (STARTED, 4.5, 4.6),
                          (ALLREDUCE, 5.5, 6)])
    two = two._replace(communicators=(two.communicators[0].last(3),))
    [found] = join([two, one]).matched
    assert found.starts.tolist() == [[3, 5], [3, 5.5]]
    assert found.skews.tolist() == [0, 0.5]
    assert [found.kinds[number] for number in found.calls] == [BCAST, ALLREDUCE]


def test_calls_that_differ_are_left_out():
    [found] = join([rank_record(0, [(ALLREDUCE, 1, 2), (BCAST, 3, 4)]),
                    rank_record(1, [(REDUCE, 1, 2), (BCAST, 3, 4)])]).matched
    assert found.starts.tolist() == [[3], [3]]


def test_a_rank_that_has_not_told_leaves_its_communicators_unmatched():
    assert not join([rank_record(0, [(ALLREDUCE, 1, 2)])]).matched


def test_clocks_are_corrected_in_proportion():
    assert correct_times(numpy.array([0.0, 5.0, 10.0]), [(0.0, 1.0), (10.0, 3.0)]).tolist() == [
        1.0, 7.0, 13.0]
    joined = join([rank_record(0, [(ALLREDUCE, 4.0, 9.0)]),
                   rank_record(1, [(ALLREDUCE, 104.0, 109.0)], clock="two",
                               ahead=[(100.0, -100.0), (110.0, -100.0)])])
    assert joined.matched[0].skews.tolist() == [0.0]
    assert joined.offsets == {1: -100.0}


def test_sums_by_kind_are_over_all_ranks():
    joined = join([rank_record(0, [(ALLREDUCE, 1, 5), (ALLREDUCE, 6, 8)]),
                   rank_record(1, [(ALLREDUCE, 3, 5), (ALLREDUCE, 6, 8)])])
    assert waits_by_kind(joined) == {ALLREDUCE: (2.0, 10.0, 2.0, {1: 1, 0: 1})}
