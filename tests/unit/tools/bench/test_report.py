"""The table that people read."""

import io
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from rich.console import Console
from unit.bench_results import ENVIRONMENT, result, written

from hpccoll.measure import results
from hpccoll.tools.bench import report

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


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", ["allreduce/mpich-4.json", "others/openmpi-2.json",
                                  "peers/mpich-2.json"])
def test_recorded_results_fit(name, width):
    environment, groups = recorded(name)
    output = io.StringIO()
    text = told(report.SizeTable(Console(file=output, width=width)), environment, groups)
    lines = [line for line in text.splitlines() if "=" not in line]  # a variable is not broken
    assert max(map(len, lines)) <= width
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    collectives = len({group[0].collective for group in groups})
    assert len(rows) == len(groups) + collectives  # a line a size, and heads
    assert "recursive_doubling" in text and "wrong elements: 0" in text


@pytest.mark.parametrize("shared, words", [(True, "CPU, which share a cache"),
                                           (False, "CPU, which share no cache"), (None, "CPU")])
def test_the_head_says_whether_two_ranks_share_a_cache(shared, words):
    assert report.header(ENVIRONMENT | {"shared_cache": shared})[1].endswith(words)


def test_the_head_says_that_an_installed_hpccoll_is_hidden():
    assert not any("hides" in line for line in report.header(ENVIRONMENT | {"hides": ""}))
    line, = [line for line in report.header(ENVIRONMENT | {"hides": "/env/hpccoll"})
             if "hides" in line]
    assert "/env/hpccoll" in line and "pip install -e" in line


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


@pytest.mark.parametrize("width", [80, 100, 140])
def test_what_the_user_names_has_a_column(width):
    """Even where two others are faster, and the terminal is narrow."""
    mine, theirs = "/home/me/mesh.py:MESH:x=2", "pat"
    group = [result("native", [8]), result("auto", [2], serves="ring"), result("ring", [3]),
             result(mine, [4]), result(theirs, [5], wrong=1)]
    made = report.SizeTable(Console(file=io.StringIO(), width=width), [mine, theirs])
    text = told(made, ENVIRONMENT, [group])
    head, row = (re.split(" {2,}", line.strip("* ")) for line in text.splitlines()
                 if line.strip("* ").startswith(("size", "1 KiB")))
    cells = dict(zip(head, row))
    assert cells["mesh.py:MESH"] == "4 us" and "/home/me" not in text.split("medians")[1]
    assert cells.get("pat") == "wrong" or re.search("--full also shows: .*pat", text)
    assert max(len(line) for line in text.splitlines() if line[0] != "#") <= width
    full = told(report.TableReport(Console(file=io.StringIO(), width=200)), ENVIRONMENT, [group])
    assert "| mesh.py:MESH:x=2 " in full and "/home/me" not in full


def test_what_is_empty_has_no_column():
    one = [[result("native", [4]), result("ring", [2]), result("pat", [3])]]
    made = report.SizeTable(Console(file=io.StringIO(), width=100))
    text = told(made, ENVIRONMENT, one)
    assert "limit" not in text and "auto" not in text
    assert re.search(r"fastest .*which +best other", text)
    assert re.search(r"1 KiB .* ring .* pat ", text)
    alone = told(report.SizeTable(Console(file=io.StringIO(), width=100)), ENVIRONMENT,
                 [[result("ring", [2])]])
    assert "ratio" not in alone and "best other" not in alone


def test_the_best_other_is_not_what_ran_and_names_are_whole():
    auto = result("auto", [2])._replace(serves="recursive_multiplying")
    group = [result("native", [4]), auto, result("recursive_multiplying", [1.5]),
             result("pat", [3])]
    for width, there in ((80, False), (100, True)):
        text = told(report.SizeTable(Console(file=io.StringIO(), width=width)), ENVIRONMENT,
                    [group])
        assert " recursive_multiplying" in text and ("best other" in text) is there
        assert re.search(r"recursive_multiplying +pat +1\.33$", text, re.MULTILINE) or not there
    alone = told(report.SizeTable(Console(file=io.StringIO(), width=100)), ENVIRONMENT,
                 [group[:3], group[:3]])
    assert alone.count("recursive_multiplying") == 2  # what ran, and nothing else was measured


def test_candidates_that_cannot_serve_are_named_once_and_wrong_results_in_full():
    output = io.StringIO()
    groups = [[result("native", [4]), result("ring", [2], wrong=3)],
              [result("native", [4], nbytes=1 << 30), result("ring", [5], nbytes=1 << 30)]]
    written(report.SizeTable(Console(file=output, width=100)), groups, interrupted=True)
    text = output.getvalue()
    assert text.count("census is omitted: a reason") == 1
    assert "WRONG: allreduce ring (ring), 1 KiB: 3 wrong" in text and "interrupted" in text
    assert "UCX_TLS=sm" in text and "MPICH 5.0.2" in text and "\x1b" not in text


def test_the_full_table_is_aligned():
    output = io.StringIO()
    groups = [[result("native", [4], limit_seconds=2e-6), result("ring", [2e5], wrong=3)],
              [result("native", [123456.7], nbytes=1 << 30), result("ring", [5e5], nbytes=1 << 30)]]
    written(report.TableReport(Console(file=output, width=200)), groups, interrupted=True)
    lines = output.getvalue().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    head, = [line for line in lines if "candidate  " in line]
    assert len({len(line) for line in (head, *rows)}) == 1
    assert len({line.index("|") for line in (head, *rows)}) == 1
    assert rows[1].split("|")[0].strip() == ""
    assert "1 GiB" in rows[2]
    text = output.getvalue()
    assert "\x1b" not in text
    assert text.count("census is omitted: a reason") == 1
    assert "WRONG: allreduce ring" in text and "interrupted" in text
    assert "UCX_TLS=sm" in text and "MPICH 5.0.2" in text
    # Time and ratio are of medians.
    middle = told(report.TableReport(Console(file=io.StringIO(), width=200)), ENVIRONMENT,
                  [[result("native", [4, 4, 100]), result("ring", [2, 2, 2])]])
    assert re.search(r"ring +2\.00 +2\.00", middle)


@pytest.mark.parametrize("kind", [report.SizeTable, report.TableReport])
def test_colours_show_on_terminals(kind):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", highlight=False,
                      _environ={}, width=100)
    written(kind(console), [[result("native", [4]), result("ring", [2])],
                            [result("native", [4]), result("ring", [8])]])
    text = output.getvalue()
    assert re.search(r"\x1b\[32m.*2\.00.*\x1b", text)
    assert re.search(r"\x1b\[31m.*0\.50.*\x1b", text)
