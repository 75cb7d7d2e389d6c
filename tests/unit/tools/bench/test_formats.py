"""What programs read: OSU's lines, CSV, JSON."""

import csv
import io
import json
import re
from contextlib import nullcontext

import pytest
from unit.bench_results import result, written

from hpccoll.measure import results
from hpccoll.tools.bench import formats


@pytest.mark.parametrize("labels", [["auto"], ["auto", "ring"]])
def test_osu_is_what_reframe_reads(labels):
    output = io.StringIO()
    made = formats.Osu(output, full=True, validation=True, tail=True)
    made.begin_collective("allreduce", labels)
    for nbytes in (8, 16):
        made.group([result(label, [4, 6], nbytes=nbytes) for label in labels], {})
    made.end([], False)
    text = output.getvalue()
    assert re.search(r"^8.*Pass", text, re.M)
    assert re.search(r"^16\s+(\S+)", text, re.M)[1] == "2.00"
    assert text.count("# Datatype: MPI_FLOAT.") == len(labels)
    line = next(line for line in text.splitlines() if line.startswith("8 "))
    assert line[:10].strip() == "8" and line[10:30].strip() == "2.00"
    assert line[30:50].strip() == "1.00" and line[50:70].strip() == "3.00"
    assert line[70:82].strip() == "2" and line[82:102].strip() == "Pass"
    assert all(line.startswith(("#", "8 ", "16 ")) for line in text.splitlines())


def test_osu_fails_on_wrong_elements():
    output = io.StringIO()
    made = formats.Osu(output, full=False, validation=True, tail=False)
    made.begin_collective("allreduce", ["auto"])
    made.group([result("auto", [4], nbytes=8, changed=1)], {})
    made.group([], {"ring": "a reason"})
    assert re.search(r"^8 +2.00 +Fail$", output.getvalue(), re.M)


def test_csv():
    output = io.StringIO()
    written(formats.Csv(output), [[result("native", [4]), result("ring", [2])]] * 2)
    rows = list(csv.DictReader(io.StringIO(output.getvalue())))
    assert [row["candidate"] for row in rows] == ["native", "ring"] * 2
    assert float(rows[1]["ratio"]) == pytest.approx(2)
    assert float(rows[1]["p50_seconds"]) == pytest.approx(2e-6)


def test_json_keeps_every_time():
    output = io.StringIO()
    made = formats.Json(lambda: nullcontext(output), {"op": "sum"})
    written(made, [[result("native", [4, 5, 6])]])
    record = json.loads(output.getvalue())
    assert record["schema"] == formats.SCHEMA
    assert record["complete"] is True
    entry, = record["results"]
    statistics = entry.pop("statistics")
    assert statistics["max_seconds"] == pytest.approx(6e-6)
    entry["seconds"], entry["rank_mean_seconds"] = map(
        tuple, (entry["seconds"], entry["rank_mean_seconds"]))
    assert results.Result(**entry) == result("native", [4, 5, 6])


@pytest.mark.parametrize("keep, kept", [
    (0, [*range(1, 11)]), (4, [1, 3, 6, 8]), (1, [1]), (10, [*range(1, 11)]),
    (99, [*range(1, 11)])])
def test_a_record_may_keep_some_of_the_times(keep, kept):
    record = io.StringIO()
    groups = [[result("native", [2]), result("ring", range(1, 11))]]
    written(formats.Json(lambda: nullcontext(record), {}, keep=keep), groups)
    native, ring = json.loads(record.getvalue())["results"]
    assert [round(1e6 * s) for s in ring["seconds"]] == kept and len(native["seconds"]) == 1
    assert ring["statistics"]["iterations"] == 10
    assert ring["statistics"]["p50_seconds"] == pytest.approx(5.5e-6)
    assert ring["statistics"]["trimmed_seconds"] == pytest.approx(5.5e-6)
