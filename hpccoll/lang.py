"""The language of schedules, for algorithms outside of this package.

    from hpccoll import Algorithm
    from hpccoll.lang import IN, OUT, Program, at, recv, send

A builder returns one rank's :class:`Program`: rounds of the steps that :func:`send`, :func:`recv`,
:func:`copy` and :func:`reduce` make, on spans of slots that :func:`at` names. What a round means
stands in :mod:`hpccoll.ir.schedule`. Needs neither MPI nor NumPy.
"""

from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP, Collective
from hpccoll.ir.in_network import in_network, multicast
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import (
    LEFT,
    RIGHT,
    Program,
    Round,
    Schedule,
    Span,
    Step,
    at,
    copy,
    recv,
    reduce,
    send,
)
from hpccoll.ir.topology import Topology

__all__ = ["COLLECTIVES", "IN", "LEFT", "OUT", "RIGHT", "TMP", "Collective", "Program", "Round",
           "Schedule", "Span", "Step", "Topology", "at", "copy", "in_network", "lanes", "multicast",
           "recv", "reduce", "send"]
