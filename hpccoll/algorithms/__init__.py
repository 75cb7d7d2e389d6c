"""Algorithms: pure functions that build schedules, and the one table that lists them.

A family is one file: in ``flat`` if it sees single ranks, in ``hierarchical`` if it composes over
the groups of a topology; ``parts`` is what families share. A new algorithm is a builder in one of
them and an entry in ``table``, which says all that is known of it. ``outside`` finds algorithms of
installed packages and of a user's files. ``build`` makes schedules by name.
"""

from hpccoll.algorithms.build import schedule
from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.table import ALGORITHMS, algorithm_names, find

__all__ = ["ALGORITHMS", "Algorithm", "algorithm_names", "find", "schedule"]
