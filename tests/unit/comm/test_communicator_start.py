"""What a program loads before it needs it: at the import, with a communicator, with a call."""

import json
import subprocess
import sys

import pytest

#: Prints the modules at three moments of a program, and those of mpi4py and NumPy before.
PROGRAM = """
import json, sys
import numpy
from mpi4py import MPI
import mpi4py.util.dtlib
before = set(sys.modules)
found = []
import hpccoll
found.append(sorted(set(sys.modules) - before))
comm = hpccoll.Comm(MPI.COMM_WORLD)
found.append(sorted(set(sys.modules) - before))
comm.Allreduce(numpy.ones(2), numpy.ones(2))
found.append(sorted(set(sys.modules) - before))
json.dump(found, sys.stdout)
"""
#: Modules of hpccoll at each moment, at most; a few more than there are.
CEILINGS = {"import": 1, "communicator": 64, "call": 220}
#: Rooms that a communicator does not load.
BEHIND_CALLS = {"algorithms", "calls", "cuda", "explain", "measure", "proof", "simulator", "tune"}
#: Modules of the library that load slowly, and that no call needs.
SLOW = {"asyncio", "decimal", "hashlib", "ipaddress", "logging", "multiprocessing", "pathlib",
        "random", "secrets", "socket", "statistics", "subprocess", "sysconfig", "xml"}


@pytest.fixture(scope="module")
def loaded():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(CEILINGS, map(set, json.loads(done.stdout))))


@pytest.mark.parametrize("moment", CEILINGS)
def test_few_modules_are_loaded(loaded, moment):
    ours = {name for name in loaded[moment] if name.partition(".")[0] == "hpccoll"}
    assert len(ours) <= CEILINGS[moment], sorted(ours)


def test_a_communicator_loads_nothing_of_its_calls(loaded):
    rooms = {name.split(".")[1] for name in loaded["communicator"] if name.startswith("hpccoll.")}
    assert rooms and not rooms & BEHIND_CALLS


def test_a_call_loads_no_slow_module(loaded):
    assert not loaded["call"] & SLOW
    assert not {name for name in loaded["call"] if name.startswith(("hpccoll.proof",
                                                                    "hpccoll.explain"))}
