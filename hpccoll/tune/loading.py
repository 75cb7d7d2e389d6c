"""Loading of measured times, the same on all ranks of a communicator.

Rank 0 reads the table and broadcasts the times for this job, or why there are none. So every rank
has the same numbers and makes the same choice without communication. If a probe is enabled and the
table has no times, all ranks measure, with a function of the caller, because measuring is a higher
layer. A process probes a system only once.

Candidates are ranked by times that are interpolated linearly in the bytes, like latency + bytes /
bandwidth; outside the measured range the nearest size decides. The model predicts candidates that
a probe leaves out, except native, which has no closed form and is always measured. For calls much
larger than the probe's, rules are better than the model. Only the four basic operations are used,
which all processors round in the same way, so every rank has the same order.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from hpccoll.config import NATIVE, OFF, ONLINE, PROBE
from hpccoll.errors import TuningError
from hpccoll.errors.agreement import compare
from hpccoll.errors.uncaught import stack_level
from hpccoll.ir.topology import Topology
from hpccoll.runtime.context import Context
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.tune.cost_model import Model, calibrate, plausible_algorithms, terms
from hpccoll.tune.online import Allowance, size_class
from hpccoll.tune.table import Candidate, Curve, Curves, Fingerprint, Table, fingerprint, read

#: Largest number of cached rankings; above it the cache is cleared.
MOST_RANKINGS = 1024
#: Note of a probe without a measurement.
NOTHING = "the probe of this job measured nothing"
#: Probe of a machine in this job; returns times, their file, and problems on rank 0.
Probe = Callable[[Context, Fingerprint, str], tuple[Curves, str, list[str]]]
#: Probes of this process, and their files; empty curves without a result.
_probed: dict[Fingerprint, tuple[Curves, str]] = {}
_tables: dict[str, tuple[tuple[int, ...], Table]] = {}
#: Factors that favour native and penalize variants of an algorithm: smaller differences are noise.
#: A probe is noisier.
TIE, PROBED_TIE = 0.97, 0.9
#: Relative difference of times below which rounding could decide the order.
LEVEL = 1 - 1e-9
#: Factor by which a predicted time must be smaller than native and the others; the model's miss
#: replaces it if larger.
UNMEASURED = 0.7
#: Factor of bytes above a probe's largest call from which the probe is not used.
BEYOND = 2


class JobTimes:
    """Measured times of this job, if any.

    Args:
        curves: times of candidates by size, per kind of call.
        source: their file; empty without times.
        online: True if this job measures every kind of call, and uses no table.
        probed: times of a probe, for kinds of calls that ``curves`` lacks.
        topology: the topology of the job; needed with ``probed``.
    """

    def __init__(self, curves: Curves | None = None, source: str = "", note: str = "",
                 online: bool = False, probed: Curves | None = None,
                 topology: Topology | None = None, tried: Curves | None = None):
        self.curves: Curves = curves or {}
        self.source, self.note = source, note
        self.online = online
        self.probed: Curves = probed or {}
        self.topology = topology
        #: Times by collective and class of size; empty if a measurement failed.
        self.tried: dict[tuple[str, int], Curve] = {}
        self._rankings: dict[tuple[str, bool, int, bool], Ranking] = {}
        self.allowance = Allowance()
        self._models: dict[tuple[Hashable, ...], Model | None] = {}
        for (collective, _), curve in (tried or {}).items():
            for point in curve:
                self.tried[collective, size_class(point[0])] = (point,)

    @property
    def has_times(self) -> bool:
        """Return True if there are times of any kind of call."""
        return bool(self.curves or self.probed or self.tried)

    def covers(self, collective: str, nbytes: int) -> bool:
        """Return True if a call of a size has been measured, or one of its collective by a plan."""
        kind = collective, True
        return (kind in self.curves or kind in self.probed
                or (collective, size_class(nbytes)) in self.tried)

    def add_tried(self, collective: str, nbytes: int, curve: Curve) -> None:
        """Add times that this job has measured; an empty curve if there are none."""
        self.tried[collective, size_class(nbytes)] = curve
        self._rankings.clear()

    def ranking(self, collective: str, commutes: bool, nbytes: int, tried: bool = True) -> Ranking:
        """Return candidates with their times, fastest first; empty without measurements.

        Times with commutative operators also apply to others without measurements. ``tried`` is
        False to leave out what jobs have measured while they ran.
        """
        key = collective, commutes, nbytes, tried
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rank(collective, commutes, nbytes, tried)
            if len(self._rankings) >= MOST_RANKINGS:
                self._rankings.clear()
            self._rankings[key] = ranking
        return ranking

    def sizes(self, collective: str) -> set[int]:
        """Return the bytes of the calls of a collective that were measured."""
        return {nbytes for curves in (self.curves, self.probed, self.tried)
                for (name, _), curve in curves.items() if name == collective
                for nbytes, _ in curve}

    def model(self, collective: str, size: int, topology: Topology | None) -> Model | None:
        """Return the model for candidates of a collective that were not measured."""
        key = collective, size, topology
        if key not in self._models:
            known = {**self.probed, **self.curves}
            self._models[key] = calibrate(known, collective, size, topology)
        return self._models[key]

    def _rank(self, collective: str, commutes: bool, nbytes: int, tried: bool) -> Ranking:
        curve = self.curves.get((collective, commutes)) or self.curves.get((collective, True))
        if not curve and tried:
            curve = self.tried.get((collective, size_class(nbytes)))
        if curve:
            return measured_ranking(curve, nbytes)
        curve = self.probed.get((collective, True))
        if not curve or self.topology is None:
            return ()
        model = self.model(collective, self.topology.size, self.topology)
        return expected_ranking(curve, model, collective, nbytes, self.topology)


class SearchResult(NamedTuple):
    """Result of the search for a table on rank 0."""

    setting: str
    path: str = ""
    problem: str = ""
    note: str = ""
    wanted: bool = False


def load(comm: PrivateComm, setting: str, place: Callable[[], Context],
         probe: Probe) -> JobTimes:
    """Load the times of this job; collective over ``comm``.

    Args:
        setting: ``HPCCOLL_TUNING``; empty for the default path.
        place: returns the private context with the layout; called only if a table may have times of
            this job; collective.
        probe: measures, if the setting enables it and there are no times; collective.
    """
    rank = comm.Get_rank()
    search, table = (_search(setting, comm.Get_size()) if rank == 0 else (SearchResult(""), {}))
    agreed: SearchResult = comm.bcast(search)
    difference = compare(comm, [repr(setting)])
    if difference is not None:
        raise TuningError(agreed.setting or default_path(),
                          f"HPCCOLL_TUNING differs between ranks: {difference}")
    if agreed.problem:
        raise TuningError(agreed.path, agreed.problem)
    if setting == ONLINE:
        return JobTimes(online=True)
    if not agreed.wanted:
        return JobTimes(note=agreed.note)
    context = place()
    machine = fingerprint(context.topology, context.place.oversubscribed)
    guess = machine._replace(probe=True)
    known: tuple[Any, ...] = ()
    if rank == 0:
        curves, probed, source = table.get(machine), table.get(guess), agreed.path
        tried = table.get(machine._replace(online=True))
        note, wanted = "", False
        if not curves and not probed and (not tried or setting == PROBE):
            before = _probed.get(guess) if setting == PROBE else None
            if before is not None:
                probed, source = before
                note = "" if probed else NOTHING
            else:
                note, wanted = _difference(agreed.path, table, machine), setting == PROBE
        known = curves, probed, tried, source, note, wanted
    curves, probed, tried, source, note, wanted = comm.bcast(known)
    if wanted:
        probed, source, problems = probe(context, guess, agreed.path)
        _probed[guess] = probed, source
        note = "" if probed else NOTHING
        # Only now: if warnings are errors, the other ranks must have their data before.
        for problem in problems:
            warnings.warn(f"hpccoll: {problem}", RuntimeWarning, stacklevel=stack_level())
    return JobTimes(curves, source if curves or probed or tried else "", note, probed=probed,
                    topology=context.topology, tried=tried)


def _search(setting: str, size: int) -> tuple[SearchResult, Table]:
    """Find and read the table of the setting; on rank 0."""
    if setting in (OFF, ONLINE):
        return SearchResult(setting), {}
    path = default_path() if setting == PROBE else setting or default_path()
    if setting in ("", PROBE) and not os.path.lexists(path):
        return SearchResult(setting, path, wanted=setting == PROBE), {}
    try:
        table = _recent(path)
    except TuningError as error:
        return SearchResult(setting, error.path, error.problem), {}
    # Topology and oversubscription need communication, and decide only between such tables.
    known = setting == PROBE or any(machine.ranks == size for machine in table)
    note = "" if known else f"{path} is not used: it has no measurements for {size} ranks"
    return SearchResult(setting, str(path), note=note, wanted=known), table


def _difference(path: str, table: Table, machine: Fingerprint) -> str:
    """Return why no entry of a table matches this machine: the difference of the nearest one."""
    def differences(other: Fingerprint) -> list[str]:
        return [f"{name} is {theirs!r} there, {ours!r} here" for name, theirs, ours
                in zip(Fingerprint._fields, other._replace(probe=False, online=False), machine)
                if theirs != ours]
    nearest = min((differences(other) for other in table), key=lambda words: len(words), default=[])
    return (f"{path} is not used: it was measured on another "
            "machine: " + ", ".join(nearest) if nearest
            else "")


def default_path() -> str:
    """Return the default path of the table."""
    from pathlib import Path
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if os.path.isabs(cache) else Path(os.path.expanduser("~/.cache"))
    return str(base / "hpccoll" / "tuning.json")


def _recent(path: str) -> Table:
    """Read a table, or return the cached one if the file is unchanged."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise TuningError(path, error.strerror or str(error)) from error
    mark = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if path not in _tables or _tables[path][0] != mark:
        _tables[path] = mark, read(path)
    return _tables[path][1]


class TimedCandidate(NamedTuple):
    """Candidate, its seconds, and True if these are predicted."""

    candidate: Candidate
    seconds: float
    predicted: bool = False


Ranking = tuple[TimedCandidate, ...]


def measured_ranking(curve: Curve, nbytes: int) -> Ranking:
    """Return the measured candidates for a size, fastest first."""
    return tuple(sorted((TimedCandidate(c, seconds) for c,
                         seconds in times_at(curve, nbytes).items()),
                        key=_weigh))


def expected_ranking(curve: Curve, model: Model | None, collective: str, nbytes: int,
                     topology: Topology) -> Ranking:
    """Return all candidates for a size, by the times of a probe or else by the model.

    Empty if the probe does not apply.
    """
    largest = curve[-1][0]
    if nbytes > BEYOND * largest:
        return ()
    nbytes = max(min(nbytes, largest), curve[0][0])
    times = times_at(curve, nbytes)
    if Candidate(NATIVE) not in times:
        return ()
    weighed = [(seconds * (PROBED_TIE if c.name == NATIVE else 1.0), TimedCandidate(c, seconds))
             for c, seconds in times.items()]
    others = plausible_algorithms(collective, topology.size, nbytes,
                                  topology.depth > 1) if model else []
    for candidate in map(Candidate, others):
        known = terms(collective, candidate, topology.size, nbytes, topology)
        if model is not None and candidate not in times and known is not None:
            seconds = model.seconds(known)
            weighed.append((seconds * max(model.miss, 1 / UNMEASURED),
                          TimedCandidate(candidate, seconds, True)))
    return tuple(timed for _, timed in sorted(weighed, key=lambda pair: pair[0]))


def times_at(curve: Curve, nbytes: int) -> Mapping[Candidate, float]:
    """Return the times of a size; between two sizes, of the candidates measured at both."""
    above = bisect_right(curve, nbytes, key=lambda point: point[0])
    if above == 0 or above == len(curve) or curve[above - 1][0] == nbytes:
        return curve[max(above - 1, 0)][1]
    (low, one), (high, two) = curve[above - 1:above + 1]
    part = (nbytes - low) / (high - low)
    between = {c: one[c] + (two[c] - one[c]) * part for c in one if c in two}
    return between or one


def _weigh(timed: TimedCandidate) -> float:
    candidate, seconds, _ = timed
    if candidate.name == NATIVE:
        return seconds * TIE
    return seconds / TIE if candidate.params or candidate.segment_bytes else seconds
