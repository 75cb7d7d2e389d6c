"""What a communicator knows of measured times, agreed on by all its ranks.

Rank 0 reads the table and tells the others what holds for this job, or why nothing does, so
every rank has the same numbers and makes the same choice without asking again. Where a probe is
asked for and nothing is known of the place, all ranks measure, with a function that the caller
hands in: measuring stands above tuning. A process does not probe a place again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.config import OFF, ONLINE, PROBE
from hpccoll.errors import TuningError
from hpccoll.ir.topology import Topology
from hpccoll.runtime.context import Context
from hpccoll.tune.cost_model import Model, calibrated
from hpccoll.tune.online import Trial
from hpccoll.tune.ranking import Ranking, expected, measured
from hpccoll.tune.table import Curves, Fingerprint, Table, fingerprint, read

#: Rankings kept; beyond, all are forgotten and made again.
MOST_RANKINGS = 1024
#: What is said where a probe could measure nothing.
NOTHING = "the probe of this job measured nothing"
#: Measures in the job itself, for a machine: times, the file that holds them, problems on rank 0.
Probe = Callable[[Context, Fingerprint, str], tuple[Curves, str, list[str]]]
#: What this process has probed, and where it is kept; empty curves where there was nothing.
_probed: dict[Fingerprint, tuple[Curves, str]] = {}


class Tuned:
    """Measured times of this job, if there are any.

    Args:
        curves: times of candidates over size, per kind of call.
        source: the file they come from; empty where there are none.
        note: why a file that was found, or a probe, has none.
        online: candidates are tried in the job itself.
        hierarchical: there are several nodes, so algorithms for them are worth trying.
        probed: times of a probe, for kinds of calls that ``curves`` lacks.
        topology: of the job; needed with ``probed``.
    """

    def __init__(self, curves: Curves | None = None, source: str = "", note: str = "",
                 online: bool = False, hierarchical: bool = False, probed: Curves | None = None,
                 topology: Topology | None = None):
        self.curves: Curves = curves or {}
        self.source, self.note = source, note
        self.online, self.hierarchical = online, hierarchical
        self.probed: Curves = probed or {}
        self.topology = topology
        self.trials: dict[tuple[Hashable, ...], Trial] = {}
        self._rankings: dict[tuple[str, bool, int], Ranking] = {}
        self._models: dict[tuple[Hashable, ...], Model | None] = {}

    def ranking(self, collective: str, commutes: bool, nbytes: int) -> Ranking:
        """Candidates with their times, fastest first; empty where nothing was measured.

        What was measured with operators that commute serves the others too where they were not
        measured themselves.
        """
        key = collective, commutes, nbytes
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rank(collective, commutes, nbytes)
            if len(self._rankings) >= MOST_RANKINGS:
                self._rankings.clear()
            self._rankings[key] = ranking
        return ranking

    def model(self, collective: str, size: int, topology: Topology | None) -> Model | None:
        """What the times of a collective say of those that were not measured."""
        key = collective, size, topology
        if key not in self._models:
            known = {**self.probed, **self.curves}
            self._models[key] = calibrated(known, collective, size, topology)
        return self._models[key]

    def _rank(self, collective: str, commutes: bool, nbytes: int) -> Ranking:
        curve = self.curves.get((collective, commutes)) or self.curves.get((collective, True))
        if curve:
            return measured(curve, nbytes)
        curve = self.probed.get((collective, True))
        if not curve or self.topology is None:
            return ()
        model = self.model(collective, self.topology.size, self.topology)
        return expected(curve, model, collective, nbytes, self.topology)


class SearchResult(NamedTuple):
    """What rank 0 tells of its search for a table."""

    setting: str
    path: str = ""
    problem: str = ""
    note: str = ""
    wanted: bool = False


def load(comm: MPI.Intracomm, setting: str, place: Callable[[], Context],
         probe: Probe) -> Tuned:
    """Look for times of this job; collective over ``comm``.

    Args:
        comm: the ranks; only methods of ``MPI.Intracomm`` itself are called.
        setting: ``HPCCOLL_TUNING``; empty for the default place.
        place: gives the private state, which knows the layout; asked for only where a table may
            know this job; collective.
        probe: measures, where the setting asks for it and nothing is known; collective.

    Raises:
        TuningError: the table is unusable or the setting differs; the same on every rank.
    """
    rank = comm.Get_rank()
    search, table = (_search(setting, comm.Get_size()) if rank == 0 else (SearchResult(""), {}))
    agreed: SearchResult = MPI.Intracomm.bcast(comm, search)
    differs = numpy.array(rank if setting != agreed.setting else -1)
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, differs, MPI.MAX)
    if differs >= 0:
        other = MPI.Intracomm.bcast(comm, setting, int(differs))
        raise TuningError(agreed.setting or default_path(), (
            f"HPCCOLL_TUNING differs between ranks: {agreed.setting!r} on rank 0, {other!r} on "
            f"rank {differs}"))
    if agreed.problem:
        raise TuningError(agreed.path, agreed.problem)
    if setting == ONLINE:
        return Tuned(online=True, hierarchical=place().topology.depth > 1)
    if not agreed.wanted:
        return Tuned(note=agreed.note)
    context = place()
    machine = fingerprint(context.topology, context.place.oversubscribed)
    guess = machine._replace(probe=True)
    known: tuple[Any, ...] = ()
    if rank == 0:
        curves, probed, source = table.get(machine), table.get(guess), agreed.path
        note, wanted = "", False
        if not curves and not probed:
            before = _probed.get(guess) if setting == PROBE else None
            if before is not None:
                probed, source = before
                note = "" if probed else NOTHING
            else:
                note, wanted = _difference(agreed.path, table, machine), setting == PROBE
        known = curves, probed, source, note, wanted
    curves, probed, source, note, wanted = MPI.Intracomm.bcast(comm, known)
    if wanted:
        probed, source, problems = probe(context, guess, agreed.path)
        _probed[guess] = probed, source
        note = "" if probed else NOTHING
        # Only now: where warnings are errors, the others have what they wait for.
        for problem in problems:
            warnings.warn(f"hpccoll: {problem}", RuntimeWarning, stacklevel=2)
    return Tuned(curves, source if curves or probed else "", note, probed=probed,
                 topology=context.topology)


def _search(setting: str, size: int) -> tuple[SearchResult, Table]:
    """Find and read the table that the setting speaks of; on rank 0."""
    if setting in (OFF, ONLINE):
        return SearchResult(setting), {}
    path = default_path() if setting == PROBE else setting or default_path()
    if setting in ("", PROBE) and not os.path.lexists(path):
        return SearchResult(setting, path, wanted=setting == PROBE), {}
    try:
        table = _recent(path)
    except TuningError as error:
        return SearchResult(setting, error.path, error.problem), {}
    # Topology and crowding cost communication, and decide only between tables like these.
    known = setting == PROBE or any(machine.ranks == size for machine in table)
    note = "" if known else f"{path} is not used: it has no measurements for {size} ranks"
    return SearchResult(setting, str(path), note=note, wanted=known), table


def _difference(path: str, table: Table, machine: Fingerprint) -> str:
    """Why no entry of the table in a file is for this machine: how the nearest one differs."""
    def differences(other: Fingerprint) -> list[str]:
        return [f"{name} is {theirs!r} there, {ours!r} here" for name, theirs, ours
                in zip(Fingerprint._fields, other._replace(probe=False), machine) if theirs != ours]
    nearest = min((differences(other) for other in table), key=lambda words: len(words), default=[])
    return (f"{path} is not used: it was measured on another "
            "machine: " + ", ".join(nearest) if nearest
            else "")


def default_path() -> str:
    """Where a table is looked for, and written, when none is named."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if os.path.isabs(cache) else Path(os.path.expanduser("~/.cache"))
    return str(base / "hpccoll" / "tuning.json")


_tables: dict[str, tuple[tuple[int, ...], Table]] = {}


def _recent(path: str) -> Table:
    """Read a table unless the file is the one that was read before."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise TuningError(path, error.strerror or str(error)) from error
    mark = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if path not in _tables or _tables[path][0] != mark:
        _tables[path] = mark, read(path)
    return _tables[path][1]
