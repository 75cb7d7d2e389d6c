"""Intermediate representation: collectives, topologies, schedules, and their byte ranges.

Standard library only; frozen values; nothing here communicates or computes. From the request to
execution: ``collectives`` and ``operators`` specify results, ``schedule`` and ``topology`` define
programs on slots; ``wellformed`` validates the output of a builder; ``passes`` make programs from
programs; ``lowering`` turns a program into phases on ``extents``, which :mod:`hpccoll.proof`
proves and :mod:`hpccoll.runtime` runs; ``dataflow`` analyses phases; ``cost`` has the bytes that a
schedule moves, and the positions of its ranks. A new collective is an entry of ``collectives``; a
new way to compose programs is a pass.
"""
