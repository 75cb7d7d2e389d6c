"""Network description of Slurm: variables, ``topology.conf``, lists of hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpccoll.errors import ArgumentError

#: Entry of a list of hosts: prefix, ranges, suffix.
_HOSTS = re.compile(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)(?:,|$)")


def slurm_switches(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above this node, outermost first, from Slurm's topology plug-in.

    >>> slurm_switches({"SLURM_TOPOLOGY_ADDR": "top.s0.n1",
    ...                 "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"})
    ('top', 's0')
    """
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds):
        return ()
    return tuple(name for name, kind in zip(names, kinds) if name and kind not in ("", "node"))


def parse_network(text: str) -> dict[str, tuple[str, ...]]:
    """Parse ``topology.conf``; return the switches above every host, outermost first.

    >>> parse_network("SwitchName=s0 Nodes=n[0-1]\\nSwitchName=top Switches=s0")
    {'n0': ('top', 's0'), 'n1': ('top', 's0')}
    """
    above: dict[str, str] = {}
    hosts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        fields = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        switch = fields.get("switchname")
        if not switch or not ("nodes" in fields or "switches" in fields):
            raise ArgumentError("HPCCOLL_NETWORK", f"cannot read line {number}: {line.strip()!r}",
                                "write SwitchName=NAME Nodes=n[0-15] or Switches=s[0-3]")
        for key in ("nodes", "switches"):
            for name in expand_hosts(fields.get(key, "")):
                if name in above:
                    raise ArgumentError("HPCCOLL_NETWORK", f"line {number}: {name} is below "
                                                           f"{above[name]} and {switch}")
                above[name] = switch
                hosts += [name] * (key == "nodes")
    return {host: _path(host, above) for host in hosts}


def _path(host: str, above: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above a host, outermost first."""
    path: list[str] = []
    while host in above:
        host = above[host]
        if host in path:
            raise ArgumentError("HPCCOLL_NETWORK", f"switch {host} is below itself")
        path.insert(0, host)
    return tuple(path)


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's list of hosts.

    >>> expand_hosts("n[08-10,12],login")
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    hosts: list[str] = []
    for match in _HOSTS.finditer(text):
        prefix, ranges, suffix = match.groups()
        for part in ranges.split(",") if ranges else [""] if prefix + suffix else []:
            first, _, last = part.partition("-")
            if part and not (first.isdigit() and (last or first).isdigit()):
                raise ArgumentError("HPCCOLL_NETWORK", f"cannot read {part!r} in {text!r}",
                                    "write lists of hosts like n[0-15,20]")
            hosts += ([f"{prefix}{number:0{len(first)}}{suffix}"
                       for number in range(int(first), int(last or first) + 1)]
                      if part else [prefix + suffix])
    return hosts
