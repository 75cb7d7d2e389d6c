"""Calibration on real ranks: every rank gets the same machine, and it can be simulated on."""

import json
import math

import pytest

import hpccoll
from hpccoll.errors import NoisyMachineError
from hpccoll.ir.topology import Topology
from hpccoll.measure import load
from hpccoll.simulator.machine_model import machine_as_data, machine_from_text
from hpccoll.tools import calibrate as calibration
from hpccoll.tools.calibrate import _crossings, calibrate


def test_a_measured_machine(world, monkeypatch):
    if world.size < 2:
        return
    for module, name in ((calibration, "BUSY"), (load, "MOST")):
        monkeypatch.setattr(module, name, math.inf)  # however busy this one is
    machine = calibrate(world, "here")
    assert len({repr(m) for m in world.allgather(machine)}) == 1
    assert 1 <= len(machine.levels) <= world.layout.depth
    for level in machine.levels:
        assert 1e-8 < level.alpha < 1
        assert 1e-13 < level.beta < 1e-6
    again = machine_from_text(json.dumps(machine_as_data(machine)), "here.json")
    made = hpccoll.schedule("allreduce", "ring", world.size)
    assert hpccoll.simulate(made, 1 << 20, again).seconds > 0


def test_pairs_that_are_measured():
    """At each level pairs are disjoint, and their ranks part there."""
    assert list(_crossings(Topology.parse("2x2"))) == [(0, [(0, 2), (1, 3)]), (1, [(0, 1)])]
    assert list(_crossings(Topology.parse("5"))) == [(0, [(0, 1), (2, 3)])]
    assert list(_crossings(Topology.parse("1x3"))) == [(1, [(0, 1)])]
    assert list(_crossings(Topology.parse("1,3"))) == [(0, [(0, 1)]), (1, [(1, 2)])]


def test_a_busy_machine_is_not_written_down(world, monkeypatch):
    """Made busy: every batch counts as disturbed, or any share of other processes as too large."""
    if world.size < 2:
        return
    for busy, most, reason in ((0.0, math.inf, "other processes use these cores"),
                               (math.inf, -1.0, "other processes used .* % of the cores")):
        monkeypatch.setattr(calibration, "BUSY", busy)
        monkeypatch.setattr(load, "MOST", most)
        with pytest.raises(NoisyMachineError, match=f"{reason}.*--force"):
            calibrate(world, "here")
    assert calibrate(world, "here", force=True).levels


def test_what_counts_as_busy():
    assert calibration.describe_spread(calibration.BUSY / 2) == ""
    assert "differ by 40x" in calibration.describe_spread(40.0)
