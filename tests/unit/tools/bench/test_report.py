"""Reports of the benchmark: tables, formats and pictures."""

import csv
import io
import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.bench_results import ENVIRONMENT, result, written

from hpccoll.cli import main
from hpccoll.explain import plotting
from hpccoll.measure import results
from hpccoll.measure.cases import make
from hpccoll.tools.bench import comparison_result, formats, plot, records, report, torch_groups

# The table that people read
pytest.importorskip("click")
pytest.importorskip("rich")


DATA = Path(__file__).parents[4] / "docs/data"


def recorded(name):
    """The environment and groups of a record of docs/data."""
    data = json.loads((DATA / name).read_text(encoding="utf-8"))
    groups = {}
    for r in data["results"]:
        known = {field: tuple(v) if isinstance(v, list) else v for field, v in r.items()
                 if field in results.Result._fields}
        groups.setdefault((r["collective"], r["nbytes"]), []).append(results.Result(**known))
    return data["environment"], list(groups.values())


def told(made, environment, groups, interrupted=False):
    """What a report writes about such groups."""
    made.begin(environment)
    latest = None
    for group in groups:
        if group[0].collective != latest:
            latest = group[0].collective
            made.begin_collective(latest, list(dict.fromkeys(
                r.candidate for other in groups if other[0].collective == latest for r in other)))
        made.group(group, {})
    made.end(groups, interrupted)
    return made.console.file.getvalue()


def test_constants_stand_in_the_head_and_sizes_have_units():
    environment, groups = recorded("allreduce/mpich-4.json")
    text = told(report.SizeTable(Console(file=io.StringIO(), width=100)), environment, groups)
    assert text.count("float32") == 1 and text.count("# allreduce, float32, sum; medians") == 1
    assert "128 MiB" in text and "134217728" not in text
    assert "0.000" not in text
    assert "4 ranks share 2 cores" in text and "as fast as MPICH" in text
    faster = [line for line in text.splitlines() if line.startswith("* ")]
    assert len(faster) > 10


def test_the_star_stands_beside_the_ratios_that_decide():
    """Of five parts the middle three count: two bad moments change neither."""
    native = [2, 2, 4, 4, 4, 4, 4, 4, 40, 40]
    text = told(report.SizeTable(Console(file=io.StringIO(), width=100)), ENVIRONMENT,
                [[result("native", native), result("ring", [4, 4, 2, 2, 2.5, 2.5, 2, 2, 2, 2])]])
    row, = [line for line in text.splitlines() if "1 KiB" in line and "ring" in line]
    assert row.startswith("* ") and "1.60-2.00" in row
    assert "the ratio in the middle three of five parts" in " ".join(text.replace("#", "").split())


def test_a_node_is_accepted_by_its_bus_bandwidth():
    """1 KiB in 2 us and in 1 us: the best size counts, of auto."""
    groups = [[result("native", [1]), result("auto", [2], serves="ring")],
              [result("native", [4]), result("auto", [1], serves="ring")]]
    rate = groups[1][1].bus_bandwidth(groups[1][1].median)
    for least, passed in ((rate, True), (rate * 1.01, False)):
        (text, found), = comparison_result.check_bandwidth(groups, least)
        assert found is passed and ("pass" in text) is passed and "at 1 KiB" in text
    table = told(report.SizeTable(Console(file=io.StringIO(), width=80)), ENVIRONMENT, groups)
    assert f"  {rate / 1e9:.3g}  " in table and "bus bandwidth, as of nccl-tests" in table


def test_candidates_that_cannot_serve_are_named_once_and_wrong_results_in_full():
    output = io.StringIO()
    groups = [[result("native", [4]), result("ring", [2], wrong=3)],
              [result("native", [4], nbytes=1 << 30), result("ring", [5], nbytes=1 << 30)]]
    written(report.SizeTable(Console(file=output, width=100)), groups, interrupted=True)
    text = output.getvalue()
    assert text.count("census is omitted: a reason") == 1
    assert "WRONG: allreduce ring (ring), 1 KiB: 3 wrong" in text and "interrupted" in text
    assert "UCX_TLS=sm" in text and "MPICH 5.0.2" in text and "\x1b" not in text


# What programs read: OSU's lines, CSV, JSON
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
    assert record["schema"] == records.SCHEMA
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


# The picture
@pytest.mark.slow
def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    groups = [[result("native", [4 * n], nbytes=n), result("ring", [2], nbytes=n)]
              for n in (8, 1024)]
    groups += [[result(name, [400], nbytes=1 << 20, limit_seconds=1e-4)
                for name in ("native", "ring")]]
    barrier = [[result("native", [4], nbytes=0, collective="barrier", dtype=None, op=None)]]
    for name, drawn in (("one.png", groups), ("many.svg", groups + barrier),
                        ("none.pdf", [[result("ring", [2])]])):
        plotting.check(str(tmp_path / name))
        plot.draw(drawn, ENVIRONMENT, str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000


# PyTorch's process groups as candidates
pytest.importorskip("click")
pytest.importorskip("rich")


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


def test_without_pytorch_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = bench("allreduce", "--peers")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("hpccoll: bench: --peers requires PyTorch; run pip")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("collective, dtype, op, in_place, problem", [
    ("allreduce", "f4", "sum", False, ""), ("allreduce", "i8", "max", True, ""),
    ("barrier", "f4", "sum", False, ""), ("scan", "f4", "sum", False, "PyTorch has no scan"),
    ("bcast", "F", "sum", False, "Gloo has no complex64"),
    ("reduce", "i4", "bxor", False, "PyTorch has no operator bxor"),
    ("allgather", "f4", "sum", True, "PyTorch has no allgather in place")])
def test_what_pytorch_can_serve(collective, dtype, op, in_place, problem):
    case = make(collective, 4, 1024, numpy.dtype(dtype), op=op, in_place=in_place)
    assert torch_groups.objection(case) == problem
