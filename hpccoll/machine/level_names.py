"""Names of the levels of a machine, which settings have as well; :mod:`hpccoll.machine.levels`."""

from __future__ import annotations

#: Outermost first. There may be several levels of switches.
SWITCH, NODE, GPU, SOCKET, NUMA, L3 = LEVELS = ("switch", "node", "gpu", "socket", "numa", "l3")
