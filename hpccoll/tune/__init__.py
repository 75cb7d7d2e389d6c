"""Tuning: which algorithm serves a call, from what was asked for, measured, or known by rules.

``choose`` is a pure function of what every rank knows, so all ranks choose alike without talking.
A new source of choices is a class in ``choose``, a rule a line in ``rules``, a promise about bits
goes into ``determinism``. Tables of measured times are read in ``table``, found in ``loading``,
written in ``store``; what measures them is :mod:`hpccoll.measure`.
"""
