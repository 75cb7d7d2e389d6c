"""Ranks as threads of one process: programs of many ranks, tested without MPI.

    run.py          run_ranks: a function on every rank, its results or its first failure
    comm.py         ThreadComm: what a rank calls; communicators made from others
    collectives.py  its upper-case collectives, by hpccoll's own schedules and executions
    objects.py      its lower-case collectives
    messages.py     its point-to-point messages
    requests.py     what nonblocking calls return
    world.py        what all ranks share, and what one rank is

Nothing is buffered: a message is copied when both its sides are there, at the latest moment that
MPI allows, and a program that relies on more waits until the time is up.
"""

from support.threads.comm import ThreadComm
from support.threads.run import run_ranks
from support.threads.world import Interrupted

__all__ = ["Interrupted", "ThreadComm", "run_ranks"]
