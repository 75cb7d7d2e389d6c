"""The idea as data: collectives, topologies, schedules, and how these become byte ranges.

Standard library only; frozen values; nothing here communicates or computes. From the request to
what runs: ``collectives`` and ``operators`` say what is wanted, ``schedule`` and ``topology`` say
how, on slots; ``wellformed`` looks at what a builder returned; ``passes`` make programs from
programs; ``lowering`` turns a program into phases on ``extents``, which :mod:`hpccoll.proof`
proves and :mod:`hpccoll.runtime` runs; ``dataflow`` answers questions about phases; ``cost`` has
the bytes that a schedule moves, and where its ranks are. A new collective is an entry of
``collectives``; a new way to compose programs is a pass.
"""
