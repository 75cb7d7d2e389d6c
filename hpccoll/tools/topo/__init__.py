"""The machine under a job: where every rank is, and what messages cost between any two.

``job_map`` and ``links`` ask all ranks and return values; ``text`` shows them on one. A
new view of the machine is a function of a ``JobMap``, and of ``Links`` where it is about costs.
"""

from hpccoll.tools.topo.job_map import JobMap as JobMap
from hpccoll.tools.topo.job_map import survey as survey
from hpccoll.tools.topo.links import Links as Links
from hpccoll.tools.topo.links import chosen as chosen
from hpccoll.tools.topo.links import measure as measure
from hpccoll.tools.topo.text import table as table
from hpccoll.tools.topo.text import tree as tree
