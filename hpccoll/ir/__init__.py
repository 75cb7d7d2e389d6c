"""The idea as data: collectives, topologies, schedules, and how these become byte ranges.

Standard library only; frozen values; nothing here communicates. ``lowering`` turns a program on slots
into phases on extents: what :mod:`hpccoll.proof` proves and :mod:`hpccoll.runtime` runs.
"""
