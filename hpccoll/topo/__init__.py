"""The machine under a job: where every rank is, and what messages cost between any two."""

from hpccoll.topo.links import Links, chosen, measure
from hpccoll.topo.picture import draw
from hpccoll.topo.survey import Machine, survey
from hpccoll.topo.words import table, tree

__all__ = ["Links", "Machine", "chosen", "draw", "measure", "survey", "table", "tree"]
