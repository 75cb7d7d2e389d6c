"""mpi4py's own tests, all of them, in ranks of ``hpccoll run``.

They need the source release of mpi4py, which pip downloads once into ``build/applications``.
"""

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import launch
import pytest
from applications import environments, results
from applications.programs.mpi4py_tests import PROGRAM
from mpi4py import MPI

BIN = Path(sys.executable).parent
#: The library that runs all tests, on one rank.
FIRST = MPI.get_vendor()[0] == "MPICH"
SCRIPT = launch.ROOT / "benchmarks" / "applications" / "scripts" / "mpi4py_suite.py"
#: Tests of datatypes and their pickling make no communication and take half of the time.
WITHOUT_RANKS = "test_datatype", "test_util_dtlib"
#: Fewest tests that pass; 2,127 in mpi4py 4.1.2, some of which want more ranks or other libraries.
FEWEST = 1700
SECONDS = 600

#: Patterns of tests that fail, and why.
EXCEPTIONS = {
    "test_comm_topo.*.testCartcomm":
        "Comm.fromhandle returns hpccoll's class of a topology, not mpi4py's",
    "test_comm_topo.*.test*raphcomm*": "the same",
    "test_objmodel.TestObjModel.testCAPI": "PyMPIComm_New returns mpi4py's class",
    "test_msgspec.TestMessageVector.testMessageBad":
        "an unknown type code is an ArgumentError, which is no KeyError",
    "test_p2p_obj.*.testCommLock":
        "looks for a lock that mpi4py's own lower-case bcast creates",
    "test_mpiabi.TestMPIABI.testGetFortranInfo": "fails with plain mpi4py and MPICH 5.0.2",
}
#: Tests that are left out, since they would not end.
LEFT_OUT = {
    "TestULFMWorld.testIAgree":
        "makes a barrier beside an Iagree that other ranks begin after theirs; where the barrier "
        "is the communicator's second one, set-up's own nonblocking collective comes between",
}


@pytest.fixture(scope="module")
def sources():
    try:
        return environments.sources(PROGRAM, BIN.parent, launch.ROOT / "build" / "applications")
    except LookupError as error:
        pytest.skip(f"no package index: {error}")


def failed_tests(sources, folder, size, *options):
    """Run the suite; return the names of the tests that failed on a rank, and how many passed."""
    environment = launch.settings(BIN)
    environment["PYTHONPATH"] += f"{os.pathsep}{launch.ROOT / 'benchmarks'}"
    output = folder / "output.txt"
    with output.open("wb") as file:
        status = subprocess.run(
            [str(launch.mpiexec(BIN)), "-n", str(size), sys.executable, "-m", "hpccoll", "run",
             str(SCRIPT), str(sources / "test"), *options],
            env={**environment, results.FOLDER: str(folder)}, cwd=folder, timeout=SECONDS,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT).returncode
    end = output.read_text(errors="replace")[-3000:]
    assert status == 0, f"status {status}:\n{end}"
    assert len(list(folder.glob("rank-*.json"))) == size, end
    passes = results.read(folder).passes
    return [name for name, passed in passes.items() if not passed], sum(passes.values()), end


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("size", [
    2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3))])
def test_mpi4pys_own_tests(sources, tmp_path, size):
    options = [word for name in LEFT_OUT for word in ("-x", name)]
    if size > 1 or not FIRST:
        options += [word for name in WITHOUT_RANKS for word in ("-e", name)]
    failed, passed, end = failed_tests(sources, tmp_path, size, *options)
    unexpected = [name for name in failed
                  if not any(fnmatch(name, pattern) for pattern in EXCEPTIONS)]
    assert not unexpected, f"{unexpected}\n{end}"
    assert passed > FEWEST
