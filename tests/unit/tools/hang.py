"""Ways to hang, whose records are in ``records``: ``mpiexec -n 3 python hang.py WAY``."""
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import hpccoll

if __name__ == "__main__":  # doctests import every file
    comm = hpccoll.Comm(MPI.COMM_WORLD)
    way, x = sys.argv[1], np.ones(1000)
    with comm.using(allreduce="ring", bcast="native" if "native" in way else "binomial"):
        for _ in range(10):
            if way == "slow" and comm.rank == 1:
                time.sleep(0.03)
            comm.Allreduce(MPI.IN_PLACE, x)
        if way in ("away", "slow") and comm.rank == 1:
            time.sleep(60)  # a long computation
        if way == "killed" and comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "stopped" and comm.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        if way == "differs" and comm.rank == 2:
            comm.Bcast(x, 0)
        if way == "operator":
            comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX if comm.rank == 1 else MPI.SUM)
        if way == "native" and comm.rank == 0:
            time.sleep(60)
        if way == "native":
            comm.Bcast(x, 0)
        if way == "left" and comm.rank == 1:
            sys.exit()
        comm.Allreduce(MPI.IN_PLACE, x)
