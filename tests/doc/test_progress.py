"""MPI's rule of progress: what a rank has begun goes on while it waits in a collective of ours.

Libraries that read other processes' memory need their sender for nothing; here they may not.
"""

import sys

import pytest

PROGRAM = """
import numpy
from mpi4py import MPI
import hpccoll

comm, native = hpccoll.Comm(MPI.COMM_WORLD), MPI.Intracomm(MPI.COMM_WORLD)
long, given = numpy.ones(1 << 19), numpy.ones(int({count}))
result = numpy.empty_like(given)
with comm.using(allreduce="recursive_doubling", iallreduce="recursive_doubling"):
    comm.Allreduce(given, result)
    for _ in range(2):
        if comm.rank == 0:
            request = native.Isend(long, 1)
        else:
            native.Recv(long, 0)  # whose sender waits in the next line
        {call}
        if comm.rank == 0:
            request.Wait()
assert comm.allreduce(long[0]) == 2
print("over", flush=True)
"""
CALLS = {"blocking": "comm.Allreduce(given, result)", "lower": "comm.allreduce(1.0)",
         "request": "comm.Iallreduce(given, result).Wait()"}


@pytest.mark.parametrize("executor", ["compiled", "python"])
@pytest.mark.parametrize("call, count", [("blocking", 4), ("blocking", 1e5), ("lower", 4),
                                         ("request", 4)])
def test_a_send_goes_on_while_its_sender_waits(job, monkeypatch, tmp_path, executor, call, count):
    if executor == "compiled":
        from hpccoll.runtime.execution import compiled
        if not compiled.BUILT:
            pytest.skip("the compiled executor was not built")
    for name, value in (("MPIR_CVAR_CH4_CMA_ENABLE", "0"),
                        ("OMPI_MCA_smsc", "^cma,xpmem,knem,accelerator")):
        monkeypatch.setenv(name, value)
    program = tmp_path / "program.py"
    # launch.py passes no settings of ours on; the program makes them.
    program.write_text(f"import os\nos.environ.update(HPCCOLL_TIMEOUT='25', "
                       f"HPCCOLL_EXECUTOR={executor!r})\n"
                       + PROGRAM.format(call=CALLS[call], count=count), encoding="utf-8")
    status, output = job(2, sys.executable, program)
    assert status == 0 and output.count("over") == 2, output
