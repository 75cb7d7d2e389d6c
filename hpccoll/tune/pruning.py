"""Which algorithms are worth trying at all, by their closed forms.

The constants are those of no machine: they only keep what cannot win anywhere, such as a chain
over a thousand ranks for eight bytes, out of measurements that would take minutes.
"""

from __future__ import annotations

from math import inf

from hpccoll.algorithms import ALGORITHMS
from hpccoll.tune.cost_model import Model, closed_form
from hpccoll.tune.table import Candidate

#: Some network.
ROUGHLY = Model((2e-6, 2e-10))
#: What costs this much more than the cheapest is not tried.
HOPELESS = 6.0


def plausible(collective: str, size: int, nbytes: int, hierarchical: bool = False) -> list[str]:
    """Algorithms for so many ranks and bytes, cheapest first; unknown costs come last.

    Of equal ones those for nodes come first, where these are of use.

    >>> "ring" in plausible("allreduce", 1024, 8), "ring" in plausible("allreduce", 64, 64 << 20)
    (False, True)

    Args:
        collective, size, nbytes: the call.
        hierarchical: whether algorithms for nodes are of use.
    """
    costs: dict[str, float] = {}
    for name, entry in ALGORITHMS[collective].items():
        if hierarchical or not entry.hierarchical:
            known = closed_form(collective, Candidate(name), size, nbytes)
            costs[name] = inf if known is None else ROUGHLY.seconds(known)
    limit = HOPELESS * min(costs.values())
    return sorted((name for name, cost in costs.items() if cost <= limit or cost == inf),
                  key=lambda name: (costs[name], not ALGORITHMS[collective][name].hierarchical))
