"""Profiles: rows of kinds, sizes that share one, what a sample says, as text."""

import json

import pytest

from hpccoll.machine.identity import library_name
from hpccoll.measure.profiling.merge import join
from hpccoll.measure.profiling.profile import CallRow, add_comparison, profile, rows_of

from .made import ALLREDUCE, BCAST, STARTED, rank_record


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
