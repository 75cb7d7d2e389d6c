"""Guard: calls that ranks disagree about, and communicators on which a call has failed.

    guard.py     the guard of a communicator: stamps, alarms, and the cause of a failure
    rank status.py     status of each rank: waiting, computing, stopped, dead
    natives.py   blocking calls of the MPI library
    setup.py     calls that create a communicator, before it has a guard
    job.py       logs of the processes of the job, which need no communicator
    queued.py    calls that are queued on a device
    watchdog.py   the thread that monitors these calls
    exchange.py  logs of other ranks, by shared memory or by messages
    verdict.py   which ranks differ, and in which field, from logs
    sites.py     file and line of a call

A guard may stop a call; it never changes data. How it works is decision 0042.
"""
