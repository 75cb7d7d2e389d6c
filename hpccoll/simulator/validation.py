"""Simulated against measured: the record of a benchmark, run again on a machine file.

Only algorithms of the table are compared; the host MPI's own and the automatic choice have no
schedule of their own. What counts in the end is whether the simulation picks the right algorithm:
the measured-best, or one that measured within ``NEAR`` of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Machine

#: An algorithm is as good as the measured-best up to this factor.
NEAR = 1.15


class Compared(NamedTuple):
    """One algorithm at one size: seconds measured (median) and simulated."""

    collective: str
    nbytes: int
    candidate: str
    measured: float
    simulated: float


class Picks(NamedTuple):
    """Sizes at which the simulated-best algorithm measured best or near it, of how many."""

    right: int
    of: int


def compare(record: Mapping[str, Any], machine: Machine, topology: Topology | None = None,
            segment_bytes: int = 0, collective: str | None = None) -> list[Compared]:
    """Simulate what a record of ``hpccoll bench --json`` measured.

    Args:
        topology: layout of the ranks; the record's if omitted.
        segment_bytes: of candidates that do not say it themselves.
        collective: the only one to simulate; all if omitted.

    Raises:
        HpccollError: not such a record, or one without an algorithm of the table.
    """
    try:
        layout = topology or _layout(record["environment"])
        compared = [Compared(r["collective"], r["nbytes"], r["candidate"],
                             r["statistics"]["p50_seconds"],
                             _simulated(r, machine, layout, segment_bytes))
                    for r in record["results"] if collective in (None, r["collective"])
                    and r["candidate"].split(":")[0] in ALGORITHMS.get(r["collective"], ())]
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise HpccollError(f"no record of hpccoll bench --json: {error!r}") from error
    if not compared:
        of = f" of {collective}" if collective else ""
        raise HpccollError(f"the record names no algorithm{of} that has a schedule; measure some: "
                           "hpccoll bench --algorithm ring,rabenseifner --json ...")
    return compared


def picks(compared: Sequence[Compared]) -> Picks:
    """Count the sizes, with two algorithms or more, at which the simulation picks well."""
    right = of = 0
    for _, same in groupby(sorted(compared), key=lambda c: c[:2]):
        group = list(same)
        if len(group) > 1:
            chosen = min(group, key=lambda c: c.simulated)
            of += 1
            right += chosen.measured <= NEAR * min(c.measured for c in group)
    return Picks(right, of)


def _simulated(result: Mapping[str, Any], machine: Machine, layout: Topology,
               segment_bytes: int) -> float:
    name, params = _read(result["candidate"])
    # The benchmark writes it like a parameter of the algorithm.
    segment_bytes = params.pop("segment", segment_bytes)
    hierarchical = ALGORITHMS[result["collective"]][name].hierarchical
    plan = schedule(result["collective"], name, layout.size, root=result["root"] or 0,
                    topology=layout if hierarchical else None, **params)
    itemsize = result["nbytes"] // result["count"] if result["count"] else 0
    return simulate(plan, result["nbytes"], machine, layout, itemsize=itemsize,
                    segment_bytes=segment_bytes).seconds


def _read(candidate: str) -> tuple[str, dict[str, int]]:
    """Name and settings of a candidate such as ``bruck:k=4:segment=65536``."""
    name, *settings = candidate.split(":")
    try:
        return name, {key: int(value) for key, _, value in (s.partition("=") for s in settings)}
    except ValueError as error:
        raise ArgumentError("candidate", f"cannot read {candidate!r}") from error


def _layout(environment: Mapping[str, Any]) -> Topology:
    """The layout that was given, or else the ranks of each host."""
    if environment["topology"]:
        return Topology.parse(environment["topology"])
    hosts = environment["rank_hosts"]
    number = {host: n for n, host in enumerate(dict.fromkeys(hosts))}
    order = sorted(range(len(hosts)), key=lambda rank: number[hosts[rank]])
    return Topology(tuple(Counter(hosts).values()), tuple(order))
