"""The table of docs/internal/gpu-checks.md is that of the record; its command tries every check."""

import json

import without_gpu


def test_the_page_is_current():
    page = without_gpu.PAGE.read_text(encoding="utf-8")
    record = json.loads(without_gpu.DATA.read_text(encoding="utf-8"))
    assert page == without_gpu.filled(page, record)
    assert [row["what"] for row in record["checks"]] == list(without_gpu.CHECKS)
    assert {row["how"] for row in record["checks"]} == {"holds"}
    record["checks"][0]["how"] = "FAILS"
    assert page != without_gpu.filled(page, record)


def test_what_fails_is_told(monkeypatch, capsys):
    def wrong():
        raise without_gpu.Failed("3 bytes")

    def missing():
        raise without_gpu.Missing("CuPy")

    monkeypatch.setattr(without_gpu, "CHECKS", {"a": wrong, "b": missing, "c": lambda: "all"})
    monkeypatch.setattr("sys.argv", ["without_gpu.py"])
    assert without_gpu.main() == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "FAILS", "not", "holds"]
