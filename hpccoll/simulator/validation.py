"""Validation: simulated against measured times of a benchmark's record.

Only algorithms of the table are compared; the host MPI's own and the automatic choice have no
schedule. The simulation must select the measured-best algorithm, or one with a measured time within
``NEAR`` of the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain.columns import WIDTH, FittedTable, Header, wrap_comment
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Machine
from hpccoll.units import size_text, time_text

#: Permitted factor to the measured-best algorithm.
NEAR = 1.15
#: A machine file fits if the median of simulated over measured is 1 up to this factor.
FITS = 3.0


class ComparedTimes(NamedTuple):
    """One algorithm at one size: seconds measured (median) and simulated."""

    collective: str
    nbytes: int
    candidate: str
    measured: float
    simulated: float


class Picks(NamedTuple):
    """Number of sizes at which the simulated-best algorithm measured near the best, and of all."""

    right: int
    of: int


def compare(record: Mapping[str, Any], machine: Machine, topology: Topology | None = None,
            segment_bytes: int = 0, collective: str | None = None) -> list[ComparedTimes]:
    """Simulate the cases of a record of ``hpccoll bench --json``.

    Args:
        topology: layout of the ranks; the record's if omitted.
        segment_bytes: segment size of candidates without their own.
        collective: the collective to simulate; all if omitted.
    """
    try:
        layout = topology or _layout(record["environment"])
        compared = [ComparedTimes(r["collective"], r["nbytes"], r["candidate"],
                                  r["statistics"]["p50_seconds"],
                                  _simulated_seconds(r, machine, layout, segment_bytes))
                    for r in record["results"] if collective in (None, r["collective"])
                    and r["candidate"].split(":")[0] in ALGORITHMS.get(r["collective"], ())]
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise HpccollError(f"not a record of hpccoll bench --json: {error!r}") from error
    if not compared:
        of = f" of {collective}" if collective else ""
        raise HpccollError(f"the record has no algorithm{of} with a schedule; run hpccoll bench "
                           "--algorithm ring,rabenseifner --json ...")
    return compared


def picks(compared: Sequence[ComparedTimes]) -> Picks:
    """Count the sizes, with two algorithms or more, at which the selection is good."""
    right = of = 0
    for _, same in groupby(sorted(compared), key=lambda c: c[:2]):
        group = list(same)
        if len(group) > 1:
            chosen = min(group, key=lambda c: c.simulated)
            of += 1
            right += chosen.measured <= NEAR * min(c.measured for c in group)
    return Picks(right, of)


def median_ratio(compared: Sequence[ComparedTimes]) -> float:
    """Return the median of simulated over measured times: 1 if the machine file fits."""
    return median(c.simulated / c.measured for c in compared)


def comparison_table(compared: Sequence[ComparedTimes], width: int = WIDTH,
                     full: bool = False) -> list[str]:
    """Return a line per algorithm and size, measured and simulated, and a conclusion.

    In a block of one size, ``*`` marks the measured-best algorithm, and the simulated-best one if
    it is right.
    """
    rows: list[list[str]] = []
    marked: list[int] = []
    last: tuple[str | None, int | None] = None, None
    for (collective, nbytes), same in groupby(sorted(compared), key=lambda c: c[:2]):
        group = sorted(same, key=lambda c: c.measured)
        for number, c in enumerate(group):
            head = ["" if (collective, nbytes) == last or collective == last[0] else collective,
                    "" if number else size_text(nbytes)]
            last = collective, nbytes
            best = min(group, key=lambda c: c.simulated) is c
            if best and len(group) > 1 and c.measured <= NEAR * group[0].measured:
                marked.append(len(rows))
            rows.append([*head, c.candidate, time_text(c.measured, 3), time_text(c.simulated, 3),
                         f"{c.simulated / c.measured:.2f}"])
    table = FittedTable([Header("collective", right=False), Header("size"),
                         Header("algorithm", right=False), Header("measured"), Header("simulated"),
                         Header("ratio", meaning="simulated over measured time")],
                        rows, width, full)
    said = [*table.legend(), "* the algorithm that simulation selects, if its measured time is "
                             f"the best or within {NEAR - 1:.0%} of it", *conclusion(compared)]
    return [*table.lines(marked), *(part for line in said for part in wrap_comment(line, width))]


def conclusion(compared: Sequence[ComparedTimes]) -> list[str]:
    """Return the conclusions of the comparison as text."""
    right, of = picks(compared)
    factor = median_ratio(compared)
    lines = [f"simulated / measured: {factor:.3g} in the middle, "
             f"{min(c.simulated / c.measured for c in compared):.3g} to "
             f"{max(c.simulated / c.measured for c in compared):.3g}"]
    if of:
        lines.append(f"{right} of {of} sizes: the algorithm that is fastest in simulation is the "
                     f"fastest measured, or within {NEAR - 1:.0%} of it")
    if not 1 / FITS <= factor <= FITS:
        lines.append("the machine file does not match the machine of the benchmark: times are "
                     f"{max(factor, 1 / factor):.3g}x too {'long' if factor > 1 else 'short'}; "
                     "repeat hpccoll simulate --calibrate and hpccoll bench on an idle machine")
    return lines


def _simulated_seconds(result: Mapping[str, Any], machine: Machine, layout: Topology,
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
    """Return name and settings of a candidate such as ``bruck:k=4:segment=65536``."""
    name, *settings = candidate.split(":")
    try:
        return name, {key: int(value) for key, _, value in (s.partition("=") for s in settings)}
    except ValueError as error:
        raise ArgumentError("candidate", f"cannot read {candidate!r}") from error


def _layout(environment: Mapping[str, Any]) -> Topology:
    """Return the given layout, or else the ranks of each host."""
    if environment["topology"]:
        return Topology.parse(environment["topology"])
    hosts = environment["rank_hosts"]
    number = {host: n for n, host in enumerate(dict.fromkeys(hosts))}
    order = sorted(range(len(hosts)), key=lambda rank: number[hosts[rank]])
    return Topology(tuple(Counter(hosts).values()), tuple(order))
