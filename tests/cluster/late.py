"""What jobs on several hosts run of which the last rank does not come: ``late.py HOW``.

    ours     it comes to a call of ours after the deadline
    native   it comes to a call of the library's after the first report
    killed   it is killed before a call of ours

The others print what they are told.
"""

import os
import signal
import sys
import time

os.environ |= {"HPCCOLL_REPORT": "1", "HPCCOLL_TIMEOUT": "20" if sys.argv[1] == "native" else "2"}

import numpy
from mpi4py import MPI

import hpccoll

HOW = sys.argv[1]
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's launcher says with it that a rank has died
comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
x, y = numpy.ones(10), numpy.zeros(10)
with comm.using(allreduce="native" if HOW == "native" else "recursive_doubling"):
    comm.Allreduce(x, y)
    start = time.monotonic()
    try:
        if comm.rank == comm.size - 1:
            if HOW == "killed":
                time.sleep(0.5)  # the others wait by then
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(4)
        comm.Allreduce(x, y)
    except hpccoll.HpccollError as error:
        print(f"rank {comm.rank}: {type(error).__name__} after {time.monotonic() - start:.1f} s: "
              f"{error}", flush=True)
if HOW == "killed":
    time.sleep(4)  # a library may end a rank whose peer closes its connection
    os._exit(0)  # MPI does not end without the dead
MPI.COMM_WORLD.Barrier()
print("over", flush=True)
if HOW == "ours":
    MPI.COMM_WORLD.Barrier()
    os._exit(0)  # messages that nobody will receive are left
