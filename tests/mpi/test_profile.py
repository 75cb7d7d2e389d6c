"""Profiles of real ranks: all calls counted on all of them, waits where they were."""

import json
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.measure.profiling.merge import join, waits_by_kind
from hpccoll.measure.profiling.observer import OBSERVER, gather_records
from hpccoll.tools.profile import draw, finish
from support.fresh_events import forget_events

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
pytestmark = [pytest.mark.mpi(min_size=2)]
COUNT = 64


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    forget_events()
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    assert comm.layout  # sets it up
    yield comm
    comm.Free()


def call_everything(comm):
    """Every form of calls, ours and the library's; each three times."""
    data, wide = numpy.ones(COUNT), numpy.empty(COUNT * SIZE)
    for _ in range(3):
        comm.Allreduce(MPI.IN_PLACE, data)
        comm.Gather(data, wide if RANK == 1 else None, root=1)
        comm.Iallreduce(MPI.IN_PLACE, data).Wait()
        assert comm.allreduce(1) == SIZE
    with comm.using(allreduce="ring", bcast="binomial"):
        request = comm.Bcast_init(data, 0)
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, data)
            comm.Iallreduce(MPI.IN_PLACE, data).Wait()
            request.Start()
            request.Wait()
        request.Free()
    comm.Allreduce(MPI.IN_PLACE, data)


def test_all_forms_are_counted_by_who_serves_them(comm):
    call_everything(comm)
    rows = {(row.title, row.served.split(",")[0]): row for row in comm.stats().details}
    chosen = next(served for title, served in rows if title == "allreduce" and served != "ring")
    counts = {key: row.calls for key, row in rows.items()}
    assert counts[("allreduce", chosen)] == 4 and counts[("allreduce", "ring")] == 3
    assert counts[("iallreduce", "native")] == counts[("iallreduce", "ring")] == 3
    assert counts[("bcast_init", "binomial")] == counts[("allreduce of objects", "objects")] == 3
    [gather] = [row for row in rows.values() if row.title == "gather"]
    assert gather.calls == 3 and gather.least == 8 * COUNT * SIZE  # the same on every rank


def test_buffers_that_are_no_arrays_are_counted_by_their_sizes(comm):
    """Objects of other sizes at addresses that were used before."""
    for turn in range(12):
        comm.Bcast(bytearray(64 if turn % 3 else 256))
        comm.Iallreduce(memoryview(numpy.ones(8)), memoryview(numpy.ones(8))).Wait()
    rows = {(row.title, row.least): row for row in comm.stats().details if "wait" not in row.title}
    assert {key: row.calls for key, row in rows.items()} == {
        ("bcast", 64): 8, ("bcast", 256): 4, ("iallreduce", 64): 12}


def test_a_call_with_another_size_on_each_rank_counts_once(comm):
    counts = [2 * source + 1 for source in range(SIZE)]
    blocks = numpy.zeros(sum(counts) * SIZE)
    for _ in range(5):
        comm.Alltoallv([blocks, [counts[RANK]] * SIZE], [blocks.copy(), counts])
    found = comm.stats()
    assert found.calls == found.as_json()["calls"] == 5 and found.served_part in (0, 1)


def test_all_ranks_get_the_profile_of_all(comm):
    call_everything(comm)
    found = comm.stats(all_ranks=True)
    assert found.ranks == SIZE and len(set(RAW.allgather(str(found)))) == 1


def test_who_comes_late_is_waited_for(comm):
    comm.Barrier()
    data = numpy.ones(COUNT)
    for _ in range(3):
        if RANK == 1:
            time.sleep(0.03)
        comm.Allreduce(MPI.IN_PLACE, data)
    comm.Bcast(data, 0)
    records = gather_records(comm, OBSERVER.record())
    if RANK == 0:
        waits = {kind.title: found for kind, found in waits_by_kind(join(records)).items()}
        waited, seconds, skew, lasts = waits["allreduce"]
        assert 0.08 < skew and 0.08 < waited <= seconds and lasts[1] >= 3


def test_communicators_of_parts_are_matched_too(comm):
    half = comm.Split(RANK % 2)
    half.Barrier()
    half.Allreduce(numpy.ones(COUNT), numpy.empty(COUNT))
    records = gather_records(comm, OBSERVER.record())
    if RANK == 0:
        joined = join(records)
        assert sorted(one.ranks for one in joined.matched) == sorted(
            {tuple(range(0, SIZE, 2)), tuple(range(1, SIZE, 2))})
        assert all(one.starts.shape == (len(one.ranks), 2) for one in joined.matched)
    half.Free()


def test_the_end_of_a_program(comm, tmp_path):
    call_everything(comm)
    found = finish(True)
    assert (found is not None) == (RANK == 0)
    if RANK == 0:
        draw(found, tmp_path / "profile.svg")
        data = json.loads(json.dumps(found.as_json()))
        assert (tmp_path / "profile.svg").read_text().count("<svg") == 1
        ours = [row for row in data["rows"] if row["title"] == "allreduce"
                and row["served"] != "native"]
        assert ours and all(row["ratio"] > 0 for row in ours)
        # What was measured for the comparison is no part of the profile.
        assert sum(row["calls"] for row in data["rows"] if row["title"] == "allreduce") == 7
