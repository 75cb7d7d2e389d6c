"""Timing of collectives with checked results, on any communicator class.

    cases (collective, size, type) -> buffers, inputs (data) -> timing (measurement)
    candidates, call_forms (implementations, call forms)     -> results (statistics)
    samples (the loop that times calls without buffers of a case)
    noise (times that are not results), load (other processes during the measurement)
    rounds -> survey (all candidates, for a tuning table) -> probe (inside a job)

Rule: no import of ``comm`` or ``tools``. A job measures itself, so this package is below the
communicator and gets its class as ``wrap`` (see :mod:`hpccoll.measure.wrapping`).

A new candidate that is not an algorithm of hpccoll is a
``Peer`` in ``World.peers``, created by its user (see :mod:`hpccoll.tools.bench.torch_groups`). A
new call form is a class in ``call_forms.FORMS``. ``rounds`` selects what a survey tries.
"""
