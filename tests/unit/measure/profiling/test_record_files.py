"""Files of ranks: written, read again, and what is wrong with them."""

import json
from types import SimpleNamespace

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.measure.profiling.record import read, save

from .made import ALLREDUCE, BCAST, rank_record


def test_written_and_read_again(tmp_path):
    for rank in range(2):
        save(str(tmp_path), rank_record(rank, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.1234567891)],
                                        ahead=[(0.5, 1e-6)]), "job", 3)
    records, ranks = read(tmp_path)
    assert ranks == 3 and [record.rank for record in records] == [0, 1]
    assert records[1].ahead == ((0.5, 1e-6),)
    assert records[1].communicators[0].calls().tolist() == [[0, 1, 2], [1, 3, 3.123456789]]
    assert records[1].communicators[0].kinds == [ALLREDUCE, BCAST]


def test_moments_are_written_along(tmp_path):
    record = rank_record(0, [(ALLREDUCE, 1.0, 2.0)])
    record.communicators[0].moments = SimpleNamespace(as_json=lambda: {"rows": [1, 2, 3]})
    save(str(tmp_path), record, "job", 1)
    [found], _ = read(tmp_path)
    assert found.communicators[0].noted == {"rows": [1, 2, 3]}


def test_the_newest_job_counts(tmp_path):
    save(str(tmp_path), rank_record(0, []), "old", 1)
    save(str(tmp_path), rank_record(1, []), "old", 2)
    save(str(tmp_path), rank_record(0, []), "new", 5)
    assert read(tmp_path)[1] == 5


def test_nothing_to_read(tmp_path):
    with pytest.raises(ArgumentError, match="collectives.*HPCCOLL_TRACE"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"format": "hpccoll calls 0"}),
                                  json.dumps({"format": "hpccoll calls 1"})])
def test_what_is_no_such_file_is_named(tmp_path, text):
    (tmp_path / "calls-x-rank00000.json").write_text(text)
    with pytest.raises(ArgumentError, match="rank00000.json.*calls"):
        read(tmp_path)
