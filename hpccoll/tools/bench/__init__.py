"""Measuring collectives on real ranks, side by side with the host MPI's, every result checked.

    cases: what is called  ->  memory: with which data  ->  measure: how long it takes
                                                         ->  report, plot: what people see
"""
