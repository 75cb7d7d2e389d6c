"""What a rank finds out about ways: with and without devices, and what the probe's end means."""

import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from mpi4py import MPI

from hpccoll.cuda import device, device_probes, ipc
from hpccoll.cuda.device_paths import WAYS
from hpccoll.cuda.node_answers import NodeAnswers


def test_every_way_is_looked_for():
    assert list(device_probes.LOOKS) == [way.name for way in WAYS]


@pytest.mark.parametrize(("served", "why"), [(False, "CuPy is not installed"),
                                             (True, "no device is visible")])
def test_a_rank_without_a_device_says_why(monkeypatch, served, why):
    monkeypatch.setattr(device_probes, "visible_devices", lambda: ())
    monkeypatch.setattr(device, "has_cupy", lambda: served)
    told, = device_probes.agree_on_ways(MPI.COMM_SELF)
    assert told.device == "" and set(told.found.values()) == {(False, why)}


def test_a_rank_with_devices_tells_of_the_first(monkeypatch):
    monkeypatch.setattr(device_probes, "visible_devices", lambda: ("0000:01:00.0", "0000:02:00.0"))
    for where, probe in (device, "probe_mpi"), (ipc, "probe_ipc"):
        monkeypatch.setattr(where, probe, lambda: device_probes.Answer(True, "tried"))
    told, = device_probes.agree_on_ways(MPI.COMM_SELF)
    assert told.device == "0000:01:00.0" and told.host == 0
    assert [name for name, (can, _) in told.found.items() if can] == ["ipc", "mpi", "staged"]


@pytest.fixture
def asked_anew():
    device.has_cupy.cache_clear()
    yield
    device.has_cupy.cache_clear()


def test_without_a_cupy_to_import_there_are_no_devices(monkeypatch, asked_anew, tmp_path):
    (tmp_path / "cupy.py").write_text("import a_library_that_this_node_lacks")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert device_probes.visible_devices() == ()  # an error would leave the others in a collective


@pytest.mark.parametrize(("end", "can", "why"), [
    (0, True, "sent device memory to itself"), (1, False, "ended with status 1"),
    (-11, False, "was killed by signal 11"),
    (subprocess.TimeoutExpired("python", 120), False, "test process failed: .*120 seconds")])
def test_what_the_probe_found_is_evidence(monkeypatch, end, can, why):
    def run(command, **how):
        assert command[-1] == "3"  # the device that is current
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(returncode=end)

    monkeypatch.setattr(subprocess, "run", run)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=3), runtime=SimpleNamespace(
        deviceGetPCIBusId=lambda number: f"0000:0{number}:00.0"))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "NODE_ANSWERS", NodeAnswers())
    device.probe_mpi.cache_clear()
    try:
        found = device.probe_mpi()
        assert found.can is can is device.mpi_moves_device_memory()
        assert re.search(why, found.why)
    finally:
        device.probe_mpi.cache_clear()
