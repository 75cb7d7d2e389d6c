"""Benchmark of collectives on real ranks against the host MPI's, every result checked.

    session (options -> times), overlap (nonblocking)    run on all ranks
    report, formats, plot                                output for people and programs, on rank 0
    records -> compare, regret                           evaluation of records, without MPI
    roofline, provenance, torch_groups                   memory limit, the machine, peers

Timing itself is :mod:`hpccoll.measure`. A new form of output is a ``BenchReport`` (see ``report``)
and a name in ``--format``; another library to compare with is a ``Peer`` like ``torch_groups``.
"""
