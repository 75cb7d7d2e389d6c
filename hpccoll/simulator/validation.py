"""Simulated against measured: the record of a benchmark, run again on a machine file.

Only algorithms of the table are compared; the host MPI's own and the automatic choice have no
schedule of their own. What counts in the end is whether the simulation picks the right algorithm:
the measured-best, or one that measured within ``NEAR`` of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from textwrap import wrap
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain.columns import WIDTH, FittedTable, Header
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Machine
from hpccoll.units import size_text, time_text

#: An algorithm is as good as the measured-best up to this factor.
NEAR = 1.15
#: A machine file fits where the median of simulated over measured is 1 up to this factor.
FITS = 3.0


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
        raise HpccollError(f"not a record of hpccoll bench --json: {error!r}") from error
    if not compared:
        of = f" of {collective}" if collective else ""
        raise HpccollError(f"the record has no algorithm{of} with a schedule; run hpccoll bench "
                           "--algorithm ring,rabenseifner --json ...")
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


def off(compared: Sequence[Compared]) -> float:
    """The median of simulated over measured times: 1 where the machine file fits the machine."""
    return median(c.simulated / c.measured for c in compared)


def beside(compared: Sequence[Compared], width: int = WIDTH, full: bool = False) -> list[str]:
    """A line per algorithm and size, measured and simulated, and what it says of both.

    In a block of one size, ``*`` marks what measured best and what is simulated best where that is
    right.
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
    return [*table.lines(marked), *(f"# {part}" for line in said for part in wrap(
        line, width - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))]


def conclusion(compared: Sequence[Compared]) -> list[str]:
    """What the comparison is worth, in words."""
    right, of = picks(compared)
    factor = off(compared)
    told = [f"simulated / measured: {factor:.3g} in the middle, "
            f"{min(c.simulated / c.measured for c in compared):.3g} to "
            f"{max(c.simulated / c.measured for c in compared):.3g}"]
    if of:
        told.append(f"{right} of {of} sizes: the algorithm that is fastest in simulation is the "
                    f"fastest measured, or within {NEAR - 1:.0%} of it")
    if not 1 / FITS <= factor <= FITS:
        told.append("the machine file does not match the machine of the benchmark: times are "
                    f"{max(factor, 1 / factor):.3g}x too {'long' if factor > 1 else 'short'}; "
                    "repeat hpccoll simulate --calibrate and hpccoll bench on an idle machine")
    return told


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
