"""One rank of a job in which something goes wrong: ``program.py DIRECTORY RANK CASE``, as JSON.

It makes good calls, then the rank at fault does what the case says, and the others go on calling.
Each writes into the directory how that ended and when. A rank whose process is ended by hpccoll
leaves its outputs there, and no result.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time

directory, rank, case = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's launcher says with it that a rank has died

import numpy  # noqa: E402
from mpi4py import MPI  # noqa: E402

import hpccoll  # noqa: E402
from hpccoll.training import Exchange  # noqa: E402
from hpccoll.training.groups.neighbours import ring_blocks  # noqa: E402

OURS = {"allreduce": "recursive_doubling", "bcast": "binomial", "barrier": "dissemination"}
NATIVE = dict.fromkeys(OURS, "native")


def write(name, **values):
    with open(f"{directory}/{name}.{rank}.part", "w", encoding="utf-8") as file:
        json.dump({"time": time.time(), **values}, file)
    os.rename(file.name, f"{directory}/{name}.{rank}")


def kill():
    write("fault")
    os.kill(os.getpid(), signal.SIGKILL)


def crash(how):
    """Die as a program with a bug does, with no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write("fault")
    {"signal": lambda: os.kill(os.getpid(), signal.SIGSEGV), "read": lambda: ctypes.string_at(0),
     "abort": os.abort}[how]()


def stop():
    write("fault", pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


def compute(seconds):
    write("fault")
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # THE COMPUTATION
        numpy.ones(1000).sum()


def lock(seconds):
    """Hold the interpreter lock, as a C extension may."""
    write("fault")
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(1e6 * seconds)))


def forms(comm, source, sink):
    """One allreduce, in each form; or a call that makes a communicator or memory."""
    def persistent():
        request.Start()
        request.Wait()

    def posted():
        request = comm.Iallreduce(source, sink)
        time.sleep(0.5)  # the library may find out in the meantime, and fail in its own words
        request.Wait()

    def objects():
        sink[:] = sum(comm.allgather(1))

    def made(make):
        make()
        sink[:] = comm.size

    def Split():
        if rank == case["odd"]:
            kill()
        return MPI.Intracomm.Split(comm)

    def exchanged():
        sink[:] = exchange.reduce([source])[0] * comm.size

    def ring():
        sink[:] = sum(block for _, block in ring_blocks(comm, source, [source.shape] * comm.size))

    request = comm.Allreduce_init(source, sink) if case.get("form") == "persistent" else None
    exchange = Exchange(comm, [source]) if case.get("form") == "exchange" else None
    return {"blocking": lambda: comm.Allreduce(source, sink), "persistent": persistent,
            "nonblocking": lambda: comm.Iallreduce(source, sink).Wait(), "objects": objects,
            "posted": posted,
            "split": lambda: made(lambda: comm.Split(0, rank)),
            "empty": lambda: made(lambda: comm.empty(10)),
            "inside": lambda: made(lambda: comm._create_after_meeting(Split)),
            "exit": sys.exit,
            "group": lambda: made(lambda: comm.Create_group(comm.Get_group())),
            "exchange": exchanged, "ring": ring}


def main():
    write("pid", pid=os.getpid())
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup(), contract=case.get("contract"))
    odd, fault = rank == case["odd"], case["fault"]
    served = case["served"]
    when = case.get("when", "before" if served == "mixed" else "after")
    preferences = OURS if served == "ours" or served == "mixed" and not odd else NATIVE
    count = case.get("count", 8)
    source, sink = numpy.ones(count), numpy.zeros(count)
    if when not in ("first", "alone"):  # on which nothing was called
        with comm.using(**(OURS if served == "mixed" else preferences)):
            comm.Barrier()
    with comm.using(**preferences):
        for _ in range(20 if when in ("during", "after") else 0):
            comm.Allreduce(source, sink)
            comm.Bcast(sink, 0)
        call = forms(comm, source, sink)[case.get("form", "blocking")]
        if when == "first":
            comm.layout  # a communicator on which nothing was called
        MPI.COMM_WORLD.Barrier()
        if odd and when == "during":
            threading.Timer(0.05, kill if fault == "kill" else stop).start()
        elif odd:
            {"kill": kill, "crash": lambda: crash(case["how"]), "stop": stop,
             "raise": lambda: write("fault"),
             "exit": lambda: write("fault"), "free": lambda: write("fault"),
             "differ": lambda: write("fault"), "inside": lambda: None,
             "compute": lambda: compute(case["seconds"]),
             "lock": lambda: lock(case["seconds"])}[fault]()
            if fault == "exit":
                sys.exit(5)
            if fault == "raise":
                raise ZeroDivisionError("made for a test")
            if fault == "free":
                comm._private().library.free()  # Free waits for the others in some libraries
                time.sleep(case["seconds"])
        for turn in range(case.get("calls", 1_000_000)):
            if case.get("delay") and turn % comm.size == rank:
                time.sleep(case["delay"])
            call()
            if when == "during" and case.get("bcast"):
                comm.Bcast(sink, 0)
            assert (sink == comm.size).all()


try:
    main()
except BaseException as error:
    if case.get("form") == "exit":
        raise
    write("result", kind=type(error).__name__, text=str(error), ranks=getattr(error, "ranks", None))
else:
    write("result", kind="", text="", ranks=None)
sys.stderr.flush()
if case["odd"] == rank and case["fault"] in ("exit", "raise"):
    sys.exit(5)  # as a program that ends: what is left to do at exit is done
time.sleep(1.0)  # ranks that look later would say, rightly, that this one has exited
os._exit(3)  # a library may wait for the dead in its Finalize
