"""Simulated against measured times: what is compared, and how picks are counted."""

import json

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulate.against import Compared, Picks, compare, picks
from hpccoll.simulate.machines import find


def record(**changes):
    results = [{"collective": "allreduce", "candidate": candidate, "nbytes": nbytes,
                "count": nbytes // 4, "root": None, "statistics": {"p50_seconds": seconds}}
               for nbytes in (64, 1 << 20)
               for candidate, seconds in (("native", 1e-6), ("ring", 2e-5),
                                          ("recursive_doubling", 1e-5),
                                          ("recursive_multiplying:k=2", 3e-5))]
    return {"environment": {"topology": None, "rank_hosts": ["a", "a", "b", "b"]},
            "results": results, **changes}


def test_algorithms_are_simulated_on_the_hosts_of_the_record():
    found = compare(record(), find("hdr"))
    assert [c.candidate for c in found] == ["ring", "recursive_doubling",
                                            "recursive_multiplying:k=2"] * 2
    small = {c.candidate: c.simulated for c in found[:3]}
    # One round inside the nodes, one across.
    assert small["recursive_doubling"] == pytest.approx(2e-6, rel=0.02)
    assert small["recursive_multiplying:k=2"] == pytest.approx(small["recursive_doubling"])
    given = compare(record(environment={"topology": "4x1", "rank_hosts": []}), find("hdr"))
    assert given[1].simulated == pytest.approx(3e-6, rel=0.02)


def test_picks():
    found = [Compared("bcast", 8, "a", 1.0, 2.0), Compared("bcast", 8, "b", 1.1, 1.0),
             Compared("bcast", 64, "a", 1.0, 2.0), Compared("bcast", 64, "b", 1.2, 1.0),
             Compared("bcast", 512, "a", 1.0, 2.0)]
    assert picks(found) == Picks(1, 2)


@pytest.mark.parametrize("wrong", [
    {}, [], {"environment": {}, "results": [{}]}, record(results=[]), record(results=3)])
def test_no_record(wrong):
    with pytest.raises(ArgumentError, match="--against: (no record|the record names no)"):
        compare(wrong, find("hdr"))


def test_the_command(tmp_path):
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from click.testing import CliRunner

    from hpccoll.cli import main
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record()))
    done = CliRunner().invoke(main, ["simulate", "--against", str(file)])
    assert done.exit_code == 0, done.output
    assert "of 2 sizes" in done.output
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "picture.png"
    done = CliRunner().invoke(main, ["simulate", "--against", str(file), "--plot", str(drawn)])
    assert done.exit_code == 0 and drawn.read_bytes()[1:4] == b"PNG", done.output
    file.write_text("{")
    assert CliRunner().invoke(main, ["simulate", "--against", str(file)]).exit_code == 2
