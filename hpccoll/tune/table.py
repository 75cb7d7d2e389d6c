"""Table of measured times, written by ``hpccoll tune`` and read by every job.

One JSON file has the measurements of any number of machines, one entry each:

    {"format": 1,
     "entries": [{"machine": {"mpi": "MPICH 5.0.2", "host": "... x 2", "ranks": 4,
                              "topology": "4", "oversubscribed": true},
                  "points": [{"collective": "allreduce", "commutes": true, "nbytes": 8,
                              "seconds": {"native": 2.1e-06, "ring": 3.5e-06}}]}],
     "checksum": "..."}

An entry with ``"probe": true`` is from a probe, one with ``"online": true`` from jobs that measured
while they ran. The checksum covers every byte before it and
detects every change of the file. Reading is strict: an unusable table is an error. Writing replaces
the whole file atomically: after a crash the old one still exists.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.outside import split
from hpccoll.atomic_file import open_replacement
from hpccoll.config import NATIVE
from hpccoll.errors import TuningError
from hpccoll.ir.topology import Topology
from hpccoll.machine.identity import library_name, processor

#: Fields that mark entries of other origin than ``hpccoll tune``.
MARKS = "probe", "online"
#: Version of the format; no other one is read.
FORMAT = 1
#: Text after the checked part of a file.
_SEAL = re.compile(r'"checksum": "([0-9a-f]{64})"\n\}\n')
#: Ratio of two times of one call above which one of them was disturbed.
DISTURBED = 3.0
#: Upper bound of valid times in seconds; the comparison also excludes NaN and infinity.
_LONGEST = 1e9
#: Name of a candidate's segment size among the parameters of its algorithm.
SEGMENT = "segment"


class Candidate(NamedTuple):
    """Candidate for a collective: an algorithm's name, its parameters and its segment size.

    ``segment_bytes`` is 0 for the default.
    """

    name: str
    params: tuple[tuple[str, int], ...] = ()
    segment_bytes: int = 0

    @property
    def label(self) -> str:
        """Label of the candidate: ``ring``, ``knomial:k=8``, ``ring:segment=65536``."""
        cut = ((SEGMENT, self.segment_bytes),) if self.segment_bytes else ()
        return ":".join([self.name, *(f"{k}={v}" for k, v in (*self.params, *cut))])

    @classmethod
    def read(cls, label: str) -> Candidate | None:
        """Parse a label; ``None`` if it is malformed. Unknown names are accepted.

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
    """Identity of the system of a measurement.

    Attributes:
        host: processor and number of processors of the node of rank 0.
        oversubscribed: True if some node has more ranks than cores.
        probe: True for a probe of a few seconds, which omits most candidates.
        online: True for jobs that measured single sizes while they ran.
    """

    mpi: str
    host: str
    ranks: int
    topology: str
    oversubscribed: bool
    probe: bool = False
    online: bool = False

    @property
    def is_rough(self) -> bool:
        """True if times of ``hpccoll tune`` replace these."""
        return self.probe or self.online


def fingerprint(topology: Topology, oversubscribed: bool) -> Fingerprint:
    """Return the fingerprint of this job on this rank."""
    return Fingerprint(library_name(), f"{processor()} x {os.cpu_count()}", topology.size,
                       str(topology), oversubscribed)


#: (collective, True if the operator commutes or there is none).
Kind = tuple[str, bool]
#: Bytes of a call, and the seconds of each candidate; ascending.
Curve = tuple[tuple[int, Mapping[Candidate, float]], ...]
Curves = Mapping[Kind, Curve]
Table = Mapping[Fingerprint, Curves]


def read(path: str | os.PathLike[str]) -> Table:
    """Read a table."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise TuningError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise TuningError(path, f"is corrupt at byte {error.start}: not UTF-8") from error
    return parse(text, path)


def parse(text: str, path: str | os.PathLike[str]) -> Table:
    """Parse the text of a table; ``path`` is for error messages."""
    import json
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
    """Return the text of a table."""
    import json
    entries = []
    for machine, curves in table.items():
        points = ",\n".join("   " + json.dumps(
            {"collective": collective, "commutes": commutes, "nbytes": nbytes,
             "seconds": {c.label: float(f"{value:.4g}") for c, value in times.items()}},
            allow_nan=False)
            for (collective, commutes), curve in curves.items() for nbytes, times in curve)
        place = machine._asdict()
        marks = "".join(f'   "{mark}": true,\n' for mark in MARKS if place.pop(mark))
        entries.append(f'  {{"machine": {json.dumps(place)},\n{marks}'
                       f'   "points": [\n{points}]}}')
    return add_checksum(f'{{"format": {FORMAT},\n "entries": [\n' + ",\n".join(entries) + "],\n ")


def add_checksum(body: str) -> str:
    """Append the checksum to a file's text."""
    import hashlib
    return f'{body}"checksum": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def write(path: str | os.PathLike[str], table: Table) -> None:
    """Write a table; replace an existing file."""
    from pathlib import Path
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        with open_replacement(path) as file:
            file.write(render(table))
    except OSError as error:
        raise TuningError(path, f"cannot write it: {error.strerror or error}",
                          "choose another file: hpccoll tune --output FILE") from error


def merge(old: Table, machine: Fingerprint, curves: Curves,
          wrong: Collection[tuple[str, Candidate]] = ()) -> Table:
    """Return a table with new curves of one machine and all other old curves.

    Two times of the same call are averaged (:func:`average`). Times of a probe for the same kind
    of calls are removed.
    """
    kept = {kind: _drop_wrong(curve, [c for name, c in wrong if name == kind[0]])
            for kind, curve in old.get(machine, {}).items()}
    known = {kind: curve for kind, curve in kept.items() if curve}
    if not machine.probe:
        curves = {kind: average(known[kind], curve) if kind in known else curve
                  for kind, curve in curves.items()}
    new = {**old, machine: {**known, **curves}}
    rough_ones = machine._replace(probe=True), machine._replace(online=True)
    for rough in () if machine.is_rough else rough_ones:
        left = {kind: curve for kind, curve in new.pop(rough, {}).items() if kind not in curves}
        if left:
            new[rough] = left
    return new


def average(one: Curve, two: Curve) -> Curve:
    """Average two curves of the same calls, per size and candidate.

    The state of a machine changes over time. The time of a candidate in only one curve is scaled by
    the median ratio of the common candidates. If two times differ by more than a factor of
    :data:`DISTURBED`, the first one is kept.
    """
    old, new = dict(one), dict(two)
    return tuple((nbytes, _mean(old[nbytes], new[nbytes]) if nbytes in old and nbytes in new
                  else old.get(nbytes) or new[nbytes]) for nbytes in sorted({*old, *new}))


def _mean(one: Mapping[Candidate, float], two: Mapping[Candidate, float]
          ) -> Mapping[Candidate, float]:
    from statistics import median
    ratios = [one[c] / two[c] for c in one if c in two]
    if not ratios:
        return two
    ratio = median(ratios)
    pairs = {c: (one.get(c, two.get(c, 0.0) * ratio), two.get(c, one.get(c, 0.0) / ratio))
             for c in {**two, **one}}
    return {c: a if _is_disturbed(a, b) else (a + b) / 2 for c, (a, b) in pairs.items()}


def _is_disturbed(one: float, two: float) -> bool:
    return max(one, two) > DISTURBED * min(one, two)


class Disagreement(NamedTuple):
    """Time of a table that is kept, because the new one differs too much."""

    collective: str
    nbytes: int
    candidate: Candidate
    old: float
    new: float


def disagreements(old: Curves, new: Curves) -> list[Disagreement]:
    """Return times of the same calls that differ by more than a factor of :data:`DISTURBED`."""
    return [Disagreement(kind[0], nbytes, candidate, before, times[candidate])
            for kind, curve in new.items() if kind in old
            for nbytes, times in curve
            for candidate, before in dict(old[kind]).get(nbytes, {}).items()
            if candidate in times and _is_disturbed(before, times[candidate])]


def _drop_wrong(curve: Curve, wrong: Sequence[Candidate]) -> Curve:
    kept = ((nbytes, {c: t for c, t in times.items() if c not in wrong}) for nbytes, times in curve)
    return tuple((nbytes, times) for nbytes, times in kept if times)


# -- checking -------------------------------------------------------------------------------
class _Unusable(Exception):
    """Reason why a well-formed text is not a table."""


def _open_regular(path: str, flags: int) -> int:
    # Opening a pipe would block until it has a writer.
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
    if add_checksum(body) != text:
        raise _Unusable("is damaged, or was changed by hand: its checksum does not fit")


def _entries(document: dict[str, Any]) -> Iterable[Any]:
    import json
    entries: list[Any]
    _, entries, _ = _fields(document, "the file", format=int, entries=list, checksum=str)
    machines = [json.dumps(_parts(entry)[:-1], sort_keys=True) for entry in entries]
    if len(set(machines)) < len(machines):
        raise _Unusable("has two entries for one machine")
    return entries


def _parts(entry: Any) -> tuple[Any, ...]:
    """Return the machine, the marks (default False), and the points."""
    whole = {**dict.fromkeys(MARKS, False), **entry} if isinstance(entry, dict) else entry
    return _fields(whole, "an entry", machine=dict, **dict.fromkeys(MARKS, bool), points=list)


def _entry(entry: dict[str, Any]) -> tuple[Fingerprint, Curves]:
    place, *marks, points = _parts(entry)
    mpi, host, ranks, topology, oversubscribed = _fields(
        place, "a machine", mpi=str, host=str, ranks=int, topology=str, oversubscribed=bool)
    machine = Fingerprint(mpi, host, ranks, topology, oversubscribed, *marks)
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
    """Return the values of an object that must have exactly these fields of these types."""
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
