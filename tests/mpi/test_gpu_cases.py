"""The cases that a GPU has shown, of CuPy and of NCCL, on the double."""

import tempfile
from functools import partial
from pathlib import Path

import pytest
from gpu import rank_cases as cases
from mpi4py import MPI

from hpccoll import cuda
from hpccoll.comm import device_messages, devices
from hpccoll.cuda import registered
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD


@pytest.fixture
def cupy(monkeypatch):
    # As they are where CuPy is installed.
    for name, method in device_messages.message_methods().items():
        monkeypatch.setattr(devices.DeviceMessages, name, method, raising=False)
    with tempfile.TemporaryDirectory() as folder:
        with installed(False, Devices(), Path(WORLD.bcast(folder))) as cupy:
            yield cupy
        WORLD.Barrier()


@pytest.mark.parametrize("name", cases.CUPY)
def test_cupy(cupy, name, monkeypatch):
    case = cases.CUPY[name]
    if name == "scratch":  # smaller arrays, and less of it
        for module in (registered, cuda):
            monkeypatch.setattr(module, "SCRATCH_BYTES", 32 << 10)
        case = partial(case, count=100_003, segment_bytes="64K")
    case(cupy)
