"""Machines as text: what is refused."""

import json
import math

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulator.machine_model import (
    Level,
    Machine,
    SwitchUnit,
    machine_as_data,
    machine_from_text,
)

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)
GOOD = {"name": "m", "reduce_bytes_per_second": 1e9,
        "levels": [{"name": "network", "alpha_seconds": 1e-6, "bytes_per_second": 1e9}]}


def changed(*where, **fields):
    data = json.loads(json.dumps(GOOD))
    place = data["levels"][0] if where else data
    for name, value in fields.items():
        if value is None:
            del place[name]
        else:
            place[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(("text", "problem"), [
    ("{", "f.json: .*JSON"),
    pytest.param("[" * 100_000, "f.json: .*nested", id="nested"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 400},"),
                 r"levels\[0\].*alpha_seconds.*inf", id="400 digits"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 5000},"),
                 r"levels\[0\].*alpha_seconds.*inf", id="5000 digits"),
    ("[]", "f.json: .*object"),
    (changed(0, in_network=3), r"levels\[0\].*in_network.*object"),
    (changed(0, in_network={"alpha_seconds": 1}), "in_network.*field bytes_per_second"),
    (changed(0, in_network={"alpha_seconds": -1, "bytes_per_second": 1}),
     r"levels\[0\].*in_network.alpha_seconds.*0.*-1"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "reduces": "yes"}),
     "in_network.reduces.*'yes'"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "colour": 1}),
     "in_network.*colour"),
    (changed(name=None), "f.json: .*field name"),
    (changed(levels=[]), "f.json: levels: .*list"),
    (changed(colour=1), "f.json: .*colour"),
    (changed(reduce_bytes_per_second=None), "field reduce_bytes_per_second"),
    (changed(reduce_bytes_per_second=-1), "reduce_bytes_per_second: .*positive.*-1"),
    (changed(sources="x"), "f.json: sources: .*strings"),
    (changed(0, bytes_per_second=None), r"levels\[0\].*field bytes_per_second"),
    (changed(0, bytes_per_second=0), r"levels\[0\].*bytes_per_second.*0"),
    (changed(0, bytes_per_second="12"), r"levels\[0\].bytes_per_second: .*number"),
    (changed(0, alpha_seconds=-1e-6), r"levels\[0\].alpha_seconds: .*0"),
    (changed(0, link_bytes_per_second=True), "link_bytes_per_second: .*number"),
    (changed(0, beta=1), r"levels\[0\] .*beta"),
    (changed(0, name=""), r"levels\[0\].name: .*string"),
    (changed(0, alpha_seconds=math.nan), "f.json: NaN"),
    (changed(0, bytes_per_second=math.inf), "f.json: Infinity"),
    (changed(0, bytes_per_second=0).replace("0,", "1e999,"), "expected|must be positive"),
    ('{"name": "a", "name": "b"}', "f.json: name.*twice"),
    (changed(levels=GOOD["levels"] * 2), "levels.*name")])
def test_bad_machine_files(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        machine_from_text(text, "f.json")


@pytest.mark.parametrize("wrong", [
    dict(alpha=-1), dict(beta=math.nan), dict(beta=math.inf), dict(link=0), dict(bus=-1),
    dict(overhead="1"), dict(alpha=True), dict(header=-1)])
def test_bad_levels(wrong):
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} of level 'x'"):
        Level(**{"name": "x", "alpha": 1e-6, "beta": 1e-9, **wrong})


def test_bad_machines():
    with pytest.raises(ArgumentError, match="no levels"):
        Machine("m", ())
    with pytest.raises(ArgumentError, match="gamma.*'m'"):
        Machine("m", FLAT.levels, -1)


def test_what_switches_do_is_written_and_read_back():
    level = Level("network", A, B, in_network=SwitchUnit(2e-6, 1e-9, reduces=False))
    machine = Machine("m", (level, Level("node", A, B)), G)
    data = machine_as_data(machine)
    assert data["levels"][0]["in_network"] == {
        "alpha_seconds": 2e-6, "bytes_per_second": pytest.approx(1e9), "reduces": False}
    assert "in_network" not in data["levels"][1]
    again = machine_from_text(json.dumps(data), "f.json")
    assert again.levels[0].in_network == level.in_network and again.levels[1].in_network is None
    with pytest.raises(ArgumentError, match="in_network alpha"):
        SwitchUnit(-1, B)
    with pytest.raises(ArgumentError, match="in_network beta.*'network'"):
        machine_as_data(Machine("m", (Level("network", A, B, in_network=SwitchUnit(A, 0)),), G))
