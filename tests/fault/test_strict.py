"""Programs run under the strictest interpreter, and without assertions, do what they always do."""

import subprocess
import sys
from pathlib import Path

import launch
import pytest

BIN = Path(sys.executable).parent
pytestmark = pytest.mark.skipif(launch.mpiexec(BIN) is None, reason="there is no mpiexec here")
PROGRAM = """
import numpy
from mpi4py import MPI
import hpccoll
comm = hpccoll.Comm(MPI.COMM_WORLD)
x, y, large = numpy.ones(50), numpy.zeros(50), numpy.ones(100_000)
for preference in ("native", "recursive_doubling", "ring"):
    with comm.using(allreduce=preference, iallreduce=preference, allreduce_init=preference):
        for _ in range(20):
            comm.Allreduce(x, y)
            comm.Iallreduce(x, y).Wait()
            comm.Allreduce(large, large.copy())
        request = comm.Allreduce_init(x, y)
        request.Start()
        request.Wait()
        request.Free()
    if (y != comm.size).any() or comm.allreduce(1) != comm.size:
        print("WRONG")
for call in (lambda: comm.Allreduce(x, y[:3]), lambda: comm.Bcast(x, comm.size),
             lambda: comm.Allreduce(x, x[::2]),
             lambda: hpccoll.schedule("allreduce", "ring", 0),
             lambda: comm.using(allreduce="none")):
    try:
        call()
        print("ACCEPTED")
    except (hpccoll.HpccollError, TypeError, ValueError):
        pass
with comm.using(allreduce="recursive_doubling"):
    try:
        comm.Allreduce(x, y, MPI.MAX if comm.rank else MPI.SUM)
        print("ACCEPTED")
    except hpccoll.HpccollError as error:
        print("told" if "disagree on operator" in str(error) else error)
"""


@pytest.mark.parametrize("flags, settings", [
    (["-O"], {}), (["-X", "dev", "-W", "error"], {"PYTHONMALLOC": "debug"})],
    ids=["without assertions", "strict"])
def test_checks_hold_and_nothing_is_warned_of(tmp_path, flags, settings):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [launch.mpiexec(BIN), "-n", "2", BIN / "python", *flags, program], text=True, check=False,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=100,
        env={**launch.settings(BIN), **settings})
    # Lines of two ranks may meet.
    assert done.returncode == 0 and "".join(done.stdout.split()) == "toldtold", done
    assert "Warning" not in done.stderr and "Traceback" not in done.stderr, done.stderr
