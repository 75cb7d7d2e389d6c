"""Guard: calls that ranks disagree about, and communicators on which a call has failed.

    guard.py     what a communicator's context asks: stamps, alarms, and what a failure means
    board.py     what each rank is doing: waits, computes, is stopped, gone
    natives.py   blocking calls of the MPI library's
    setup.py     calls that make a communicator, where no guard watches yet
    job.py       logs of the job's processes, which need no communicator
    queued.py    calls that are queued on a device
    watcher.py   the thread that looks after them
    exchange.py  what the ranks know of each other: logs in shared memory, or messages
    verdict.py   which ranks differ, in what, from logs alone
    sites.py     where in the program a call was made

A guard may stop a call; it never changes data. How it works is decision 0042.
"""
