"""The table that people read."""

import io
import re

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from rich.console import Console
from unit.bench_results import result, written

from hpccoll.tools.bench import report


def test_table_is_aligned():
    output = io.StringIO()
    groups = [[result("native", [4], limit_seconds=2e-6), result("ring", [2e5], wrong=3)],
              [result("native", [123456.7], nbytes=1 << 30), result("ring", [5e5], nbytes=1 << 30)]]
    written(report.TableReport(Console(file=output), full=True), groups, interrupted=True)
    lines = output.getvalue().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    head, = [line for line in lines if "candidate  " in line]
    assert len({len(line) for line in (head, *rows)}) == 1
    assert len({line.index("|") for line in (head, *rows)}) == 1
    assert rows[1].split("|")[0].strip() == ""
    assert "1073741824" in rows[2]
    text = output.getvalue()
    assert "\x1b" not in text
    assert text.count("census is left out: a reason") == 1
    assert "WRONG: allreduce ring" in text and "interrupted" in text
    assert "UCX_TLS=sm" in text and "MPICH 5.0.2" in text


def test_table_has_colours_on_terminals():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", highlight=False,
                      _environ={})
    written(report.TableReport(console), [[result("native", [4]), result("ring", [2]),
                                     result("pat", [8]), result("linear", [4.1])]])
    text = output.getvalue()
    assert re.search(r"\x1b\[32m +2\.00\x1b", text)
    assert re.search(r"\x1b\[31m +0\.50\x1b", text)
    assert re.search(r"(?<!m)  0\.98 ", text)
