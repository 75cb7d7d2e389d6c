"""The machine under a job: where every rank is, and what messages cost between any two."""

from hpccoll.tools.topo.job_map import JobMap, survey
from hpccoll.tools.topo.links import Links, chosen, measure
from hpccoll.tools.topo.plot import draw
from hpccoll.tools.topo.text import table, tree

__all__ = ["Links", "JobMap", "chosen", "draw", "measure", "survey", "table", "tree"]
