"""Tuning: selects the algorithm of a call by user choices, measurements and rules.

``choose`` is a pure function of data that every rank has, so all ranks choose the same algorithm
without communication. A new source of choices is a class in ``choose``, a rule is a line in
``rules``, and ``determinism`` has the guarantees about bits. ``table`` reads tables of measured
times, ``loading`` finds them, ``store`` writes them, and :mod:`hpccoll.measure` measures.
"""
