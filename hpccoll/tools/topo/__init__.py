"""The machine under a job: where every rank is, and what messages cost between any two.

``job_map`` and ``links`` ask all ranks and return values; ``text`` and ``plot`` show them on one. A
new view of the machine is a function of a ``JobMap``, and of ``Links`` where it is about costs.
"""

from hpccoll.tools.topo.job_map import JobMap, survey
from hpccoll.tools.topo.links import Links, chosen, measure
from hpccoll.tools.topo.plot import draw
from hpccoll.tools.topo.text import table, tree

__all__ = ["Links", "JobMap", "chosen", "draw", "measure", "survey", "table", "tree"]
