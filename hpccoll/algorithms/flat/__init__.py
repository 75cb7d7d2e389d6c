"""Algorithms over single ranks, one family a file.

A file opens with the idea, its source, and its rounds and bytes. It knows nothing of nodes, and
imports ``parts`` and at most a family that it varies. A new family is a file here, and its entries
in :mod:`hpccoll.algorithms.table`.
"""
