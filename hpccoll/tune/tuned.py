"""What a communicator knows of measured times, agreed on by all its ranks.

Rank 0 reads the table and tells the others what holds for this job, or why nothing does, so
every rank has the same numbers and makes the same choice without asking again.

Between two measured sizes the time of a candidate is taken to grow linearly with the bytes, as
latency + bytes / bandwidth does; beyond the outermost ones, the outermost decide.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.config import NATIVE, OFF, ONLINE
from hpccoll.errors import TuningError
from hpccoll.tune.machine import here
from hpccoll.tune.table import Candidate, Curve, Curves, Machine, Table, read

#: Native counts as this much faster than measured, and variants of an algorithm as that much
#: slower: below that, they would win and lose by noise.
TIE = 0.97
#: Rankings kept; more sizes than that, and they are made anew.
MOST_RANKINGS = 1024

Ranking = tuple[tuple[Candidate, float], ...]


class Tuned:
    """Measured times of this job, if there are any.

    Args:
        curves: times of candidates over size, per kind of call.
        source: the file they come from.
        note: why there are none, where a file was found.
        online: candidates are tried in the job itself.
        hierarchical: there are several nodes, so algorithms for them are worth trying.
    """

    def __init__(self, curves: Curves | None = None, source: str = "", note: str = "",
                 online: bool = False, hierarchical: bool = False):
        self.curves: Curves = curves or {}
        self.source, self.note = source, note
        self.online, self.hierarchical = online, hierarchical
        self.trials: dict[tuple, Any] = {}
        self._rankings: dict[tuple[str, bool, int], Ranking] = {}

    def ranking(self, collective: str, commutes: bool, nbytes: int) -> Ranking:
        """Candidates with their times, fastest first; empty where nothing was measured.

        What was measured with operators that commute serves the others too where they were not
        measured themselves.
        """
        key = collective, commutes, nbytes
        found = self._rankings.get(key)
        if found is None:
            curve = self.curves.get((collective, commutes)) or self.curves.get((collective, True))
            found = tuple(sorted(times_at(curve, nbytes).items(), key=_by_time)) if curve else ()
            if len(self._rankings) >= MOST_RANKINGS:
                self._rankings.clear()
            self._rankings[key] = found
        return found


def _by_time(timed: tuple[Candidate, float]) -> float:
    candidate, seconds = timed
    if candidate.name == NATIVE:
        return seconds * TIE
    return seconds / TIE if candidate.params or candidate.segment_bytes else seconds


def times_at(curve: Curve, nbytes: int) -> Mapping[Candidate, float]:
    """Times of a size; between two measured ones, of the candidates measured at both.

    Only the four basic operations, which every processor rounds alike.
    """
    above = bisect_right(curve, nbytes, key=lambda point: point[0])
    if above == 0 or above == len(curve) or curve[above - 1][0] == nbytes:
        return curve[max(above - 1, 0)][1]
    (low, one), (high, two) = curve[above - 1:above + 1]
    part = (nbytes - low) / (high - low)
    between = {c: one[c] + (two[c] - one[c]) * part for c in one if c in two}
    return between or one


class Told(NamedTuple):
    """What rank 0 tells of its search for a table."""

    setting: str
    path: str = ""
    problem: str = ""
    note: str = ""
    wanted: bool = False


def load(comm: MPI.Intracomm, setting: str,
         place: Callable[[], Any]) -> Tuned:
    """Look for times of this job; collective over ``comm``.

    Args:
        comm: the ranks; only methods of ``MPI.Intracomm`` itself are called.
        setting: ``HPCCOLL_TUNING``; empty for the default place.
        place: gives the private state, which knows the layout; asked for only where a table may
            know this job; collective.

    Raises:
        TuningError: the table is unusable or the setting differs; the same on every rank.
    """
    rank, table = comm.Get_rank(), {}
    told = None
    if rank == 0:
        told, table = _search(setting, comm.Get_size())
    told = MPI.Intracomm.bcast(comm, told)
    differs = numpy.array(rank if setting != told.setting else -1)
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, differs, MPI.MAX)
    if differs >= 0:
        other = MPI.Intracomm.bcast(comm, setting, int(differs))
        raise TuningError(told.setting or default_path(), (
            f"HPCCOLL_TUNING differs between ranks: it is {told.setting!r} on rank 0 and "
            f"{other!r} on rank {differs}"))
    if told.problem:
        raise TuningError(told.path, told.problem)
    if setting == ONLINE:
        return Tuned(online=True, hierarchical=place().topology.depth > 1)
    if not told.wanted:
        return Tuned(note=told.note, source=told.path)
    state = place()
    machine = here(state.topology, state.crowded)
    curves, note = None, ""
    if rank == 0:
        curves = table.get(machine)
        note = "" if curves else _strange(table, machine)
    curves, note = MPI.Intracomm.bcast(comm, (curves, note))
    return Tuned(curves, told.path, note)


def _search(setting: str, size: int) -> tuple[Told, Table]:
    """Find and read the table that the setting speaks of; on rank 0."""
    if setting in (OFF, ONLINE):
        return Told(setting), {}
    path = setting or default_path()
    if not setting and not os.path.lexists(path):
        return Told(setting), {}
    try:
        table = _recent(path)
    except TuningError as error:
        return Told(setting, error.path, error.problem), {}
    # Topology and crowding cost communication, and decide only between tables like these.
    known = any(machine.ranks == size for machine in table)
    note = "" if known else f"it has no measurements for {size} ranks"
    return Told(setting, str(path), note=note, wanted=known), table


def _strange(table: Table, machine: Machine) -> str:
    """Why no entry of a table is for this machine: how the nearest one differs."""
    def differences(other: Machine) -> list[str]:
        return [f"{name} is {theirs!r} there and {ours!r} here" for name, theirs, ours
                in zip(Machine._fields, other, machine) if theirs != ours]
    return "it was measured elsewhere: " + ", ".join(min(map(differences, table), key=len))


def default_path() -> str:
    """Where a table is looked for, and written, when none is named."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if os.path.isabs(cache) else Path(os.path.expanduser("~/.cache"))
    return str(base / "hpccoll" / "tuning.json")


_tables: dict[str, tuple[tuple, Table]] = {}


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
