"""The user's arguments in; a checked ``Call`` and ``CallFacts`` out, before any message.

No cache and no choice lives here. A new collective is a function in ``resolve``. What users may pass as
a buffer is in ``specification``; another kind of memory goes into ``memory``, another element type
into ``datatypes``. What is left to mpi4py, and how its complaints read, is in ``native``.
"""
