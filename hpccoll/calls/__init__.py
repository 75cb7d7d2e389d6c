"""Converts the user's arguments to a checked ``Call`` and ``CallFacts``, before any message.

This package has no cache and chooses nothing. A new collective is a function in ``resolve``.
``specification`` parses buffer arguments, ``memory`` supports kinds of memory, ``datatypes``
element types; ``native`` passes other calls to mpi4py and converts its errors.
"""
