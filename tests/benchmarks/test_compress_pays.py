"""Where compression pays: the closed form, and what is printed."""

import compress_pays as pays
import pytest
from compress_pays import Price


def test_the_rate_below_which_a_scheme_pays(monkeypatch):
    work = {"none": 0.25, "bf16": 0.75, "int8": 0.25, "topk:density=1.0": 1.0}
    monkeypatch.setattr(pays, "work_seconds", lambda scheme, shapes: work[str(scheme)])
    none, bf16, int8, topk = pays.costs(1 << 20, 2, ["bf16", "none", "int8", "topk:density=1.0"])
    assert bf16 == Price("bf16", 0.75, 1 << 19, (1 << 19) / 0.5)
    assert none.seconds(bf16.below) == bf16.seconds(bf16.below)
    assert none.below == topk.below == 0 and int8.below == float("inf")


def test_the_command(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    pays.main(["--nbytes", "64K", "--ranks", "4", "--plot", str(tmp_path / "a.png"), "bf16",
               "onebit"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["scheme", "none", "bf16", "onebit"]
    assert "100.00%" in lines[1] and "50.00%" in lines[2] and lines[3].endswith("Gbit/s")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
