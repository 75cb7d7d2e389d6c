"""Algorithms: pure functions that build schedules, and the table of them.

A family is one file: in ``flat`` if it uses single ranks, in ``hierarchical`` if it uses the groups
of a topology. ``parts`` has the code of several families. A new algorithm is a builder in a family
and an entry in ``table``. ``outside`` finds algorithms of installed packages and of files.
``build`` creates schedules by name.
"""

from hpccoll.algorithms.build import schedule
from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.table import ALGORITHMS, algorithm_names, find

__all__ = ["ALGORITHMS", "Algorithm", "algorithm_names", "find", "schedule"]
