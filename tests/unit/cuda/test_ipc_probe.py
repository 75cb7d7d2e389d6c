"""What the end of a child process means that reads device memory of this one."""

import subprocess
import sys
from math import inf
from types import SimpleNamespace

import pytest

from hpccoll.cuda import ipc
from support.gpu.device import installed
from support.gpu.streams import Devices

probed = ipc.probe_ipc.__wrapped__


@pytest.mark.parametrize(("status", "can", "why"), [
    (0, True, "process read device memory"), (1, False, "ended with status 1"),
    (-11, False, "was killed by signal 11")])
def test_the_end_of_the_child_is_the_answer(status, can, why, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: (
        asked.append(command), SimpleNamespace(returncode=status))[1])
    with installed(False, Devices(), tmp_path):
        answer = probed()
    assert answer[0] == can and why in answer[1]
    assert len(asked) == 1 and all(bytes.fromhex(one) for one in asked[0][4:])


@pytest.mark.parametrize("function", ["malloc", "ipcGetMemHandle", "ipcGetEventHandle"])
def test_what_cuda_refuses_is_the_answer(function, tmp_path):
    machine = Devices()
    machine.faults[function] = -inf
    with installed(False, machine, tmp_path):
        answer = probed()
    assert not answer[0] and function in answer[1]


def test_the_child_uses_the_device_that_is_current(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: (
        asked.append(command), SimpleNamespace(returncode=0))[1])
    with installed(False, Devices(3), tmp_path) as cupy, cupy.cuda.Device(2):
        assert probed()[0]
    source, number = asked[0][2:4]
    assert number == "2" and "cupy.cuda.Device(int(sys.argv[1])).use()" in source


def test_what_the_pool_keeps_makes_room(monkeypatch, tmp_path):
    machine = Devices()
    machine.faults["malloc"] = 0
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    with installed(False, machine, tmp_path):
        assert probed()[0]
    assert machine.calls["free_all_blocks"] == 1 and machine.calls["malloc"] == 2


def test_without_cupy_it_is_no(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not probed()[0]
