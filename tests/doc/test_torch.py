"""Training programs as processes: how they start, and how they end when something is wrong."""

import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
RUN = "-m", "hpccoll", "run", "-c"
#: Reads what torchrun would set, and imports nothing of ours on a torch that needs no import.
TORCHRUN = """
import os, torch, torch.distributed as dist
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
    import hpccoll.torch
dist.init_process_group("hpccoll")
assert dist.get_rank() == int(os.environ["RANK"]) and dist.get_backend() == "hpccoll"
ones = torch.ones(int(os.environ["LOCAL_WORLD_SIZE"]))
dist.all_reduce(ones)
assert (ones == dist.get_world_size()).all()
dist.barrier()
print("all is well")
dist.destroy_process_group()
"""
#: Rank 0 waits for a call that the others never make.
LATE = """
import time, torch, hpccoll.torch, torch.distributed as dist
from datetime import timedelta
hpccoll.torch.init_process_group(timeout=timedelta(seconds=1))
dist.barrier()
dist.all_reduce(torch.ones(2)) if dist.get_rank() == 0 else time.sleep(8)
"""
LONE = """
import hpccoll.torch, torch.distributed as dist
dist.init_process_group("hpccoll", init_method="mpi://")
"""


def test_a_program_for_torchrun(job):
    status, output = job(2, sys.executable, *RUN, TORCHRUN)
    assert status == 0 and output.count("all is well") == 2, output


@pytest.mark.parametrize("launched", [True, False], ids=["mpiexec -n 1", "no launcher"])
def test_a_program_for_torchrun_on_one_process(job, capture, launched):
    words = sys.executable, *RUN, TORCHRUN
    status, output = job(1, *words) if launched else capture(*words)
    assert status == 0 and output.count("all is well") == 1, output


def test_a_rank_that_does_not_come_in_the_time_of_the_group_is_named(job):
    status, output = job(2, sys.executable, "-c", LATE)
    assert status != 0
    assert "CollectiveTimeout: hpccoll: rank 1 is " in output, output
    assert "timed out on rank 0 after 1 s" in output, output


def test_without_mpis_launcher(job, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, output = job(1, sys.executable, "-c", LONE)
    assert status != 0 and "mpiexec -n 2 hpccoll run train.py" in " ".join(output.split()), output
