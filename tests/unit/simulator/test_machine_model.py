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
    ("{", "f.json: not JSON"),
    pytest.param("[" * 100_000, "f.json: nested too deep", id="nested"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 400},"),
                 r"levels\[0\].alpha_seconds: expected a number, got inf", id="400 digits"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 5000},"),
                 r"levels\[0\].alpha_seconds: expected a number, got inf", id="5000 digits"),
    ("[]", "f.json: the file: expected an object"),
    (changed(0, in_network=3), r"levels\[0\].in_network: expected an object with the fields alpha"),
    (changed(0, in_network={"alpha_seconds": 1}), "in_network lacks the field bytes_per_second"),
    (changed(0, in_network={"alpha_seconds": -1, "bytes_per_second": 1}),
     r"levels\[0\].in_network.alpha_seconds: must be 0 or more, got -1"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "reduces": "yes"}),
     "in_network.reduces: expected true or false, got 'yes'"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "colour": 1}),
     "in_network has an unknown field colour"),
    (changed(name=None), "f.json: the file lacks the field name"),
    (changed(levels=[]), "f.json: levels: expected a list of at least one"),
    (changed(colour=1), "f.json: the file has an unknown field colour"),
    (changed(reduce_bytes_per_second=None), "lacks the field reduce_bytes_per_second"),
    (changed(reduce_bytes_per_second=-1), "reduce_bytes_per_second: must be positive, got -1"),
    (changed(sources="x"), "f.json: sources: expected a list of texts"),
    (changed(0, bytes_per_second=None), r"levels\[0\] lacks the field bytes_per_second"),
    (changed(0, bytes_per_second=0), r"levels\[0\].bytes_per_second: must be positive, got 0"),
    (changed(0, bytes_per_second="12"), r"levels\[0\].bytes_per_second: expected a number"),
    (changed(0, alpha_seconds=-1e-6), r"levels\[0\].alpha_seconds: must be 0 or more"),
    (changed(0, link_bytes_per_second=True), r"link_bytes_per_second: expected a number"),
    (changed(0, beta=1), r"levels\[0\] has an unknown field beta"),
    (changed(0, name=""), r"levels\[0\].name: expected a text"),
    (changed(0, alpha_seconds=math.nan), "f.json: NaN is not a number"),
    (changed(0, bytes_per_second=math.inf), "f.json: Infinity is not a number"),
    (changed(0, bytes_per_second=0).replace("0,", "1e999,"), "expected|must be positive"),
    ('{"name": "a", "name": "b"}', "f.json: name is given twice"),
    (changed(levels=GOOD["levels"] * 2), "two levels of one name")])
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
