"""Measuring collectives on real ranks, side by side with the host MPI's, every result checked.

    session (options -> times), overlap (nonblocking)    run on all ranks
    report, formats, plot                                what people and programs read, on rank 0
    records -> compare, regret                           what records say, without MPI
    roofline, provenance, torch_groups                   memory's limit, the machine, peers

Timing itself is :mod:`hpccoll.measure`. A new form of output is a ``BenchReport`` (see ``report``)
and a name in ``--format``; another library to compare with is a ``Peer`` beside ``torch_groups``.
"""
