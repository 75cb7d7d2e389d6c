"""The machine under a job: positions of ranks, and costs of messages between them.

``job_map`` and ``links`` gather from all ranks and return values; ``table`` and ``tree`` print them
on one. A new view of the machine is a function of a ``JobMap``, and of ``Links`` for costs.
"""

from hpccoll.tools.topo.job_map import JobMap as JobMap
from hpccoll.tools.topo.job_map import survey as survey
from hpccoll.tools.topo.links import Links as Links
from hpccoll.tools.topo.links import choose_ranks as choose_ranks
from hpccoll.tools.topo.links import measure as measure
from hpccoll.tools.topo.links import table as table
from hpccoll.tools.topo.links import tree as tree
