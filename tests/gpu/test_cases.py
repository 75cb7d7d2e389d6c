"""Cases of two ranks on a GPU, which they may share: ``rank_cases.py``."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")

from gpu import rank_cases as cases

from support.gpu.real_device import device_reason

ROOT = Path(__file__).resolve().parents[2]
#: What NCCL needs for ranks that share a GPU, and seconds until a missing rank is noticed.
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "8",
          "HPCCOLL_TIMEOUT": "6"}
RANKS = 2
pytestmark = pytest.mark.skipif(bool(device_reason()), reason=device_reason() or "")


def start(name, environment=None):
    """Run a case on two ranks, and tell whether both say that it is right."""
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [launcher, "-n", str(RANKS), sys.executable, "-m", "gpu.rank_cases", name],
        env={**os.environ, "PYTHONPATH": path, **(environment or {})}, capture_output=True,
        text=True, timeout=180, check=False, cwd=ROOT)
    assert not found.returncode, found.stderr[-4000:]
    assert found.stdout.count("right") == RANKS, found.stdout


@pytest.mark.parametrize("name", cases.CUPY)
def test_cupy(name):
    start(name)


@pytest.mark.parametrize("name", cases.NCCL)
def test_nccl(name):
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not getattr(nccl, "available", False) or nccl.get_version() < 23000:
        pytest.skip("NCCL is older than 2.30")
    start(name, SHARED)


@pytest.mark.parametrize("name", cases.TORCH)
def test_torch(name):
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    import torch
    if torch.version.cuda is None:
        pytest.skip("PyTorch has no CUDA")
    start(name)
