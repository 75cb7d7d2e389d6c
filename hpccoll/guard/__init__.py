"""Guard: calls that ranks disagree about, and communicators on which a call has failed.

    guard.py          the guard of a communicator: call hashes, alarms, and the cause of a failure
    alarm.py          alarms, and the logs of other ranks, by shared memory or by messages
    rank_status.py    status of each rank: waiting, computing, stopped, dead
    failed_ranks.py   errors for ranks that have failed
    diagnosis.py      which ranks differ, and in which field, from logs
    library_calls.py  blocking calls of the MPI library
    pending_calls.py  nonblocking and persistent calls of the MPI library
    stream_calls.py   calls that are queued on a device
    setup.py          calls that create a communicator, before it has a guard
    job_status.py     logs of the processes of the job, which need no communicator
    watchdog.py       the thread that monitors these calls
    data_checks.py    checks of inputs and results that the user asks for
    call_guard.py     the lock that admits one thread at a time
    comm_table.py     what ``hpccoll status`` reads of a process
    call_sites.py     file and line of a call
    call_offsets.py   ranks that have made one call more or fewer
    flight_record.py  the last calls, written to a file after a failure

A guard may stop a call; it never changes data. How it works is decision 0042.
"""
