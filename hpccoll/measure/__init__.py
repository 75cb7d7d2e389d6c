"""Timing of collectives, every result checked, on any communicator class that is handed in.

    cases (what is called) -> buffers, inputs (with which data) -> timing (how long it takes)
    candidates, call_forms (by what, and how)                   -> results (what the times say)
    noise (which times are no results), load (which other processes ran meanwhile)
    survey_plan, shortlist -> survey (everything, for a tuning table) -> probe (inside a job)

The rule: never ``comm`` nor ``tools``. A job measures itself, so this stands below the communicator
and gets its class as ``wrap`` (see :mod:`hpccoll.measure.wrapping`).

``device_buffers`` has buffers on a GPU. A new candidate that is not an algorithm of hpccoll is a
``Peer`` in ``World.peers``, made where it is wanted (see :mod:`hpccoll.tools.bench.torch_groups`).
A new form of calls is a class in ``call_forms.FORMS``. What a survey tries is decided in
``shortlist``.
"""
