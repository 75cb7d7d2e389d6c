"""What jobs on several hosts run of which the last rank is late: ``late.py ours|native``.

In calls of ours it is later than the deadline; in the library's it comes after the first report.
"""

import os
import sys
import time

os.environ |= {"HPCCOLL_REPORT": "1", "HPCCOLL_TIMEOUT": "2" if sys.argv[1] == "ours" else "20"}

import numpy
from mpi4py import MPI

import hpccoll

comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
x, y = numpy.ones(10), numpy.zeros(10)
served = {"ours": "recursive_doubling", "native": "native"}[sys.argv[1]]
with comm.using(allreduce=served):
    comm.Allreduce(x, y)
    try:
        if comm.rank == comm.size - 1:
            time.sleep(4)
        comm.Allreduce(x, y)
    except hpccoll.HpccollError as error:
        print(f"rank {comm.rank}: {type(error).__name__}: {error}", flush=True)
MPI.COMM_WORLD.Barrier()
print("over", flush=True)
if sys.argv[1] == "ours":
    MPI.COMM_WORLD.Barrier()
    os._exit(0)  # messages that nobody will receive are left
