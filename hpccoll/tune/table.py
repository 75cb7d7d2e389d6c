"""The table of measured times: what ``hpccoll tune`` writes and every job reads.

One JSON file holds the measurements of any number of machines, one entry each:

    {"format": 1,
     "entries": [{"machine": {"mpi": "MPICH 5.0.2", "host": "... x 2", "ranks": 4,
                              "topology": "4", "oversubscribed": true},
                  "points": [{"collective": "allreduce", "commutes": true, "nbytes": 8,
                              "seconds": {"native": 2.1e-06, "ring": 3.5e-06}}]}],
     "checksum": "..."}

An entry with ``"probe": true`` besides comes from a probe. The checksum is over every byte before
it, so no change of the file goes unseen. Reading is strict - a table that cannot be used as it
stands is an error, never a guess - and writing replaces the whole file at once: after a crash, the
old one is still there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.outside import split
from hpccoll.atomic_file import replacing
from hpccoll.config import NATIVE
from hpccoll.errors import TuningError
from hpccoll.ir.topology import Topology
from hpccoll.machine.identity import library_name, processor

#: Version of the format that is written, the only one that is read.
FORMAT = 1
#: What follows the checked part of a file.
_SEAL = re.compile(r'"checksum": "([0-9a-f]{64})"\n\}\n')
#: Factor between two times of one call above which one of them was disturbed.
DISTURBED = 3.0
#: Seconds that no collective takes; NaN and infinity are not below it either.
_LONGEST = 1e9
#: How a candidate's segment is spelled beside the parameters of its algorithm.
SEGMENT = "segment"


class Candidate(NamedTuple):
    """Something that can serve a collective: a name, parameters, and how to cut messages.

    ``segment_bytes`` is 0 where the default decides.
    """

    name: str
    params: tuple[tuple[str, int], ...] = ()
    segment_bytes: int = 0

    @property
    def label(self) -> str:
        """How it is written: ``ring``, ``knomial:k=8``, ``ring:segment=65536``."""
        cut = ((SEGMENT, self.segment_bytes),) if self.segment_bytes else ()
        return ":".join([self.name, *(f"{k}={v}" for k, v in (*self.params, *cut))])

    @classmethod
    def read(cls, label: str) -> Candidate | None:
        """Read a label; ``None`` where it is malformed. Whether the name exists is not asked.

        >>> Candidate.read("bruck:k=4:segment=4096")
        Candidate(name='bruck', params=(('k', 4),), segment_bytes=4096)
        >>> Candidate.read("my.py:torus:x=2").name
        'my.py:torus'
        """
        name, settings = split(label)
        params: dict[str, int] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if not key.isidentifier() or not re.fullmatch("[1-9][0-9]{0,17}", value) or (
                    key in params):
                return None
            params[key] = int(value)
        segment = params.pop(SEGMENT, 0)
        return cls(name, tuple(params.items()), segment) if name else None


class Fingerprint(NamedTuple):
    """What a measurement holds for.

    Attributes:
        mpi: name and version of the MPI library.
        host: processor and number of processors of the node of rank 0.
        ranks, topology: of the communicator.
        oversubscribed: some node has more ranks than processors.
        probe: it was a probe of a few seconds, which leaves out most candidates.
    """

    mpi: str
    host: str
    ranks: int
    topology: str
    oversubscribed: bool
    probe: bool = False


def fingerprint(topology: Topology, oversubscribed: bool) -> Fingerprint:
    """The fingerprint of this job, as this rank sees it."""
    return Fingerprint(library_name(), f"{processor()} x {os.cpu_count()}", topology.size,
                       str(topology), oversubscribed)


#: (collective, whether the operator commutes); ``True`` where there is no operator.
Kind = tuple[str, bool]
#: Bytes of a call, and the seconds of each candidate; ascending.
Curve = tuple[tuple[int, Mapping[Candidate, float]], ...]
Curves = Mapping[Kind, Curve]
Table = Mapping[Fingerprint, Curves]


def read(path: str | os.PathLike[str]) -> Table:
    """Read a table.

    Raises:
        TuningError: it cannot be used; names the file and the reason.
    """
    try:
        with open(path, "rb", opener=_open_regular) as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise TuningError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise TuningError(path, f"is corrupt at byte {error.start}: not UTF-8") from error
    return parse(text, path)


def parse(text: str, path: str | os.PathLike[str]) -> Table:
    """Read the text of a table; ``path`` is for the message of an error.

    Raises:
        TuningError: it cannot be used.
    """
    if not text:
        raise TuningError(path, "is empty")
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct)
        _check_seal(text, document)
        return {machine: curves for machine, curves in map(_entry, _entries(document))}
    except _Unusable as error:
        raise TuningError(path, str(error)) from None
    except ValueError as error:
        raise TuningError(path, f"is corrupt or truncated: {error}") from error
    except RecursionError:
        raise TuningError(path, "is corrupt: nested too deep") from None


def render(table: Table) -> str:
    """The text of a table."""
    entries = []
    for machine, curves in table.items():
        points = ",\n".join("   " + json.dumps(
            {"collective": collective, "commutes": commutes, "nbytes": nbytes,
             "seconds": {c.label: float(f"{value:.4g}") for c, value in times.items()}},
            allow_nan=False)
            for (collective, commutes), curve in curves.items() for nbytes, times in curve)
        place = machine._asdict()
        probe = '   "probe": true,\n' if place.pop("probe") else ""
        entries.append(f'  {{"machine": {json.dumps(place)},\n{probe}'
                       f'   "points": [\n{points}]}}')
    return sealed(f'{{"format": {FORMAT},\n "entries": [\n' + ",\n".join(entries) + "],\n ")


def sealed(body: str) -> str:
    """A file's text up to its checksum, and the checksum."""
    return f'{body}"checksum": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def write(path: str | os.PathLike[str], table: Table) -> None:
    """Write a table in the place of the file that is there, if any.

    Raises:
        TuningError: it cannot be written; what was there is still there.
    """
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(render(table))
    except OSError as error:
        raise TuningError(path, f"cannot write it: {error.strerror or error}",
                          "choose another file: hpccoll tune --output FILE") from error


def merged(old: Table, machine: Fingerprint, curves: Curves,
           wrong: Collection[tuple[str, Candidate]] = ()) -> Table:
    """A table with new curves of one machine; its other curves and machines stay.

    Where both have times of the same calls, each counts half (:func:`averaged`). What a probe found
    of the same kind of calls goes.

    Args:
        old, machine, curves: the table, and what to add to it.
        wrong: collectives, and candidates whose results were wrong: their old times go.
    """
    kept = {kind: _without(curve, [c for name, c in wrong if name == kind[0]])
            for kind, curve in old.get(machine, {}).items()}
    known = {kind: curve for kind, curve in kept.items() if curve}
    if not machine.probe:
        curves = {kind: averaged(known[kind], curve) if kind in known else curve
                  for kind, curve in curves.items()}
    new = {**old, machine: {**known, **curves}}
    probe = machine._replace(probe=True)
    if not machine.probe and probe in new:
        new[probe] = {kind: curve for kind, curve in new[probe].items() if kind not in curves}
        if not new[probe]:
            del new[probe]
    return new


def averaged(one: Curve, two: Curve) -> Curve:
    """Two curves of the same calls; where both have a size, the mean of each candidate's times.

    Machines are in another state at another time: a candidate that only one of them has is taken to
    have been as much faster or slower in the other as, in the middle, those were that both have.
    Where two times differ by more than a factor of :data:`DISTURBED`, the first one stays.
    """
    old, new = dict(one), dict(two)
    return tuple((nbytes, _mean(old[nbytes], new[nbytes]) if nbytes in old and nbytes in new
                  else old.get(nbytes) or new[nbytes]) for nbytes in sorted({*old, *new}))


def _mean(one: Mapping[Candidate, float], two: Mapping[Candidate, float]
          ) -> Mapping[Candidate, float]:
    ratios = [one[c] / two[c] for c in one if c in two]
    if not ratios:
        return two
    ratio = median(ratios)
    pairs = {c: (one.get(c, two.get(c, 0.0) * ratio), two.get(c, one.get(c, 0.0) / ratio))
             for c in {**two, **one}}
    return {c: a if _disturbed(a, b) else (a + b) / 2 for c, (a, b) in pairs.items()}


def _disturbed(one: float, two: float) -> bool:
    return max(one, two) > DISTURBED * min(one, two)


class Disagreement(NamedTuple):
    """A time of a table that stays, since the new one differs too much."""

    collective: str
    nbytes: int
    candidate: Candidate
    old: float
    new: float


def disagreements(old: Curves, new: Curves) -> list[Disagreement]:
    """Times of the same calls that differ by more than a factor of :data:`DISTURBED`."""
    return [Disagreement(kind[0], nbytes, candidate, before, times[candidate])
            for kind, curve in new.items() if kind in old
            for nbytes, times in curve
            for candidate, before in dict(old[kind]).get(nbytes, {}).items()
            if candidate in times and _disturbed(before, times[candidate])]


def _without(curve: Curve, wrong: Sequence[Candidate]) -> Curve:
    kept = ((nbytes, {c: t for c, t in times.items() if c not in wrong}) for nbytes, times in curve)
    return tuple((nbytes, times) for nbytes, times in kept if times)


# -- checking -------------------------------------------------------------------------------
class _Unusable(Exception):
    """Why a well-formed text is no table."""


def _open_regular(path: str, flags: int) -> int:
    # A pipe would make the reader wait for a writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(0, "is a directory" if stat.S_ISDIR(mode) else "is not a regular file")
    return descriptor


def _no_constant(text: str) -> float:
    raise _Unusable(f"has a time that is no number: {text}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Unusable("has a name twice in one place")
    return fields


def _check_seal(text: str, document: Any) -> None:
    version = document.get("format") if isinstance(document, dict) else None
    if type(version) is not int:
        raise _Unusable("is not a tuning table of hpccoll")
    if version != FORMAT:
        age = "a newer" if version > FORMAT else "an older"
        raise _Unusable(f"was written by {age} hpccoll: format {version}, "
                        f"this one reads {FORMAT}")
    body, name, _ = text.rpartition('"checksum": "')
    seal = _SEAL.fullmatch(text, len(body))
    if not name or not seal:
        raise _Unusable("is corrupt or truncated: it does not end with a checksum")
    if sealed(body) != text:
        raise _Unusable("is damaged, or was changed by hand: its checksum does not fit")


def _entries(document: dict[str, Any]) -> Iterable[Any]:
    entries: list[Any]
    _, entries, _ = _fields(document, "the file", format=int, entries=list, checksum=str)
    machines = [json.dumps(_parts(entry)[:2], sort_keys=True) for entry in entries]
    if len(set(machines)) < len(machines):
        raise _Unusable("has two entries for one machine")
    return entries


def _parts(entry: Any) -> tuple[Any, ...]:
    """Machine, whether it was a probe - it was not where nothing is said -, and points."""
    whole = {"probe": False, **entry} if isinstance(entry, dict) else entry
    return _fields(whole, "an entry", machine=dict, probe=bool, points=list)


def _entry(entry: dict[str, Any]) -> tuple[Fingerprint, Curves]:
    place, probe, points = _parts(entry)
    mpi, host, ranks, topology, oversubscribed = _fields(
        place, "a machine", mpi=str, host=str, ranks=int, topology=str, oversubscribed=bool)
    machine = Fingerprint(mpi, host, ranks, topology, oversubscribed, probe)
    curves: dict[Kind, dict[int, dict[Candidate, float]]] = {}
    for point in points:
        collective, commutes, nbytes, seconds = _fields(
            point, "a point", collective=str, commutes=bool, nbytes=int, seconds=dict)
        if collective not in ALGORITHMS:
            raise _Unusable(f"names an unknown collective {collective!r}")
        where = f"{collective} at {nbytes} bytes"
        sizes = curves.setdefault((collective, commutes), {})
        if nbytes < 0:
            raise _Unusable(f"has a negative size: {where}")
        if nbytes in sizes:
            raise _Unusable(f"has two points for {where}")
        if not seconds:
            raise _Unusable(f"has no candidate for {where}")
        sizes[nbytes] = {_candidate(collective, label): _time(value, f"{where}, {label}")
                         for label, value in seconds.items()}
    return machine, {kind: tuple(sorted(sizes.items())) for kind, sizes in curves.items()}


def _fields(value: Any, what: str, **kinds: type) -> tuple[Any, ...]:
    """The values of an object that must have exactly these fields of these types."""
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise _Unusable(f"is not a tuning table of hpccoll: {what} must have the fields "
                        + ", ".join(kinds))
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise _Unusable(f"is not a tuning table of hpccoll: {name} of {what} must be of type "
                            f"{kind.__name__}, not {value[name]!r}")
    return tuple(value[name] for name in kinds)


def _candidate(collective: str, label: str) -> Candidate:
    candidate = Candidate.read(label)
    if candidate is None:
        raise _Unusable(f"has a candidate that cannot be read: {label!r}")
    if candidate.name == NATIVE and candidate == Candidate(NATIVE):
        return candidate
    entry = ALGORITHMS[collective].get(candidate.name)
    if entry is None:
        raise _Unusable(f"names an unknown algorithm: {collective} {candidate.name!r}")
    for key, _ in candidate.params:
        if key not in entry.params:
            raise _Unusable(f"names an unknown parameter: {collective} {label!r}")
    return candidate


def _time(value: Any, where: str) -> float:
    if type(value) not in (float, int) or not -_LONGEST < value < _LONGEST:
        raise _Unusable(f"has a time that is no number of seconds: {where} {value!r}")
    if value <= 0:
        raise _Unusable(f"has a time that is not positive: {where} {value!r}")
    return float(value)
