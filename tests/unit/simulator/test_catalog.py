"""Machines by name and by file."""

import json

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulator import catalog
from hpccoll.simulator.machine_model import Level, Machine, machine_as_data, machine_from_text

GOOD = {"name": "m", "reduce_bytes_per_second": 1e9,
        "levels": [{"name": "network", "alpha_seconds": 1e-6, "bytes_per_second": 1e9}]}


def test_machines_that_come_along():
    for name in catalog.names():
        machine = catalog.find(name)
        assert machine.name == name
        assert machine.description
        assert machine.sources
        again = machine_from_text(json.dumps(machine_as_data(machine)), name)
        for level, other in zip(machine.levels, again.levels):
            assert (level.name, level.alpha, level.link, level.bus, level.overhead,
                    level.header) == (other.name, other.alpha, other.link, other.bus,
                                      other.overhead, other.header)
            assert level.beta == pytest.approx(other.beta)


def test_machines_by_file_and_not_at_all(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(GOOD))
    assert catalog.find(file) == catalog.find(str(file))
    with pytest.raises(ArgumentError, match="'nowhere'"):
        catalog.find("nowhere")
    with pytest.raises(TypeError, match="Machine"):
        catalog.find(7)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="not text"):
        catalog.find(file)
    with pytest.raises(ArgumentError, match="infinite"):
        machine_as_data(Machine("m", (Level("a", 0, 0),)))
