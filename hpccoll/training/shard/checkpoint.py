"""Gathering, resharding and checkpoints of shards for any number of ranks.

    index.json                   arrays, groups and counts; vectors with their types; facts
    <serial>-<rank>-<vector>     this rank's parts of one vector, contiguous

The index is replaced last, so the previous checkpoint remains valid after a crash. A reader derives
the location of each element from the index, and maps the files that it needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from hpccoll.atomic_file import open_replacement
from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec, Bucket
from hpccoll.training.compress.scheme import finish
from hpccoll.training.shard.agreement import raise_on_all_ranks
from hpccoll.training.shard.partition import ShardGroup
from hpccoll.training.shard.weights import Gather, views

#: This rank's parts by vector name, one for each group.
Vectors = Mapping[str, Sequence[numpy.ndarray]]
INDEX, FORMAT = "index.json", 1


def gather_arrays(gather: Gather | None, groups: Sequence[ShardGroup], specs: Sequence[ArraySpec],
                  parts: Sequence[numpy.ndarray]) -> list[numpy.ndarray]:
    """Gather whole arrays from parts; collective unless ``gather`` is None (whole parts)."""
    arrays: dict[int, numpy.ndarray] = {}
    for group, part in zip(groups, parts):
        whole = part.copy() if gather is None else numpy.empty(group.bucket.count, part.dtype)
        if gather is not None and whole.size:
            finish(gather(part, whole, group.counts))
        arrays.update(views(group, whole, specs))
    return [arrays[index] for index in range(len(specs))]


def scatter_arrays(groups: Sequence[ShardGroup], spans: Sequence[slice], arrays: Sequence[Any],
                   parts: Sequence[numpy.ndarray]) -> None:
    """Fill the parts, which are ``spans`` of the groups' vectors, from whole arrays."""
    for group, span, part in zip(groups, spans, parts):
        for index, elements, place in group.pieces(span):
            part[place] = numpy.asarray(arrays[index]).reshape(-1)[elements]


def check(specs: Sequence[ArraySpec], vectors: Vectors, given: Mapping[str, Sequence[Any]]) -> None:
    """Check that whole arrays match the vectors."""
    if set(vectors) != set(given):
        raise ArgumentError("state", f"it has {', '.join(sorted(given))}, this optimizer has "
                                     f"{', '.join(sorted(vectors))}")
    shapes = [spec.shape for spec in specs]
    for name, arrays in given.items():
        if [numpy.shape(array) for array in arrays] != shapes:
            raise ArgumentError("state", f"the arrays of '{name}' have other shapes")


def save(comm: Any, folder: str | os.PathLike[str], groups: Sequence[ShardGroup],
         specs: Sequence[ArraySpec], vectors: Vectors, facts: Mapping[str, Any]) -> None:
    """Write the parts of all ranks, and replace the index; collective.

    Raises:
        ShardError: on all ranks, if one cannot write; the previous index remains.
    """
    folder, rank = Path(folder), comm.Get_rank()
    serial = comm.bcast(_next_serial(folder) if rank == 0 else None)
    faults: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, parts in vectors.items():
            with open(_file(folder, serial, rank, name), "wb") as file:
                for part in parts:
                    file.write(part.view("u1").data)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        faults.append(str(error))
    _check_all_ranks(comm, faults)
    if rank == 0:
        index = {"format": FORMAT, "serial": serial, "facts": dict(facts),
                 "arrays": [[spec.name, list(spec.shape)] for spec in specs],
                 "vectors": {name: [part.dtype.name for part in parts[:1]]
                             for name, parts in vectors.items()},
                 "groups": [[group.bucket.members, group.bucket.starts, group.counts]
                            for group in groups]}
        try:
            with open_replacement(folder / INDEX) as text:
                json.dump(index, text)
            for old in folder.glob("*-*-*"):
                if not old.name.startswith(f"{serial}-"):
                    old.unlink()
        except OSError as error:
            faults.append(str(error))
    _check_all_ranks(comm, faults)


def restore(comm: Any, folder: str | os.PathLike[str], groups: Sequence[ShardGroup],
            specs: Sequence[ArraySpec], spans: Sequence[slice], vectors: Vectors
            ) -> dict[str, Any]:
    """Fill the parts, which are spans of the groups' vectors, from files; return the saved facts.

    Raises:
        ShardError: on all ranks, if files are missing on one, or belong to other arrays or another
            optimizer; nothing is changed.
    """
    folder, faults, index = Path(folder), [], {}
    places: dict[str, list[list[_Piece]]] = {}
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        faults = list(_differences(index, specs, vectors))
        if not faults:
            places = {name: _file_locations(folder, index, name, parts)
                      for name, parts in vectors.items() if parts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        faults.append(f"cannot be read: {error}")
    _check_all_ranks(comm, [f"{folder}: {fault}" for fault in faults])
    for name, pieces in places.items():
        for group, span, part in zip(groups, spans, vectors[name]):
            for number, elements, place in group.pieces(span):
                _fill(part[place], elements.start, pieces[number])
    return dict(index["facts"])


class _Piece(NamedTuple):
    """Elements of an array in a file."""

    start: int
    values: numpy.ndarray


def _fill(target: numpy.ndarray, start: int, pieces: Sequence[_Piece]) -> None:
    for piece in pieces:
        low = max(start, piece.start)
        high = min(start + target.size, piece.start + piece.values.size)
        if low < high:
            target[low - start:high - start] = piece.values[low - piece.start:high - piece.start]


def _file_locations(folder: Path, index: dict[str, Any], name: str, parts: Sequence[numpy.ndarray]
                    ) -> list[list[_Piece]]:
    places: list[list[_Piece]] = [[] for _ in index["arrays"]]
    groups = [ShardGroup(Bucket(tuple(members), tuple(starts), sum(counts), "", 0), tuple(counts))
              for members, starts, counts in index["groups"]]
    for rank in range(len(groups[0].counts)):
        wanted = sum(group.counts[rank] for group in groups)
        values = _map_file(_file(folder, index["serial"], rank, name), wanted, parts[0].dtype)
        for group in groups:
            for number, elements, place in group.pieces(group.part(rank)):
                places[number].append(_Piece(elements.start, values[place]))
            values = values[group.counts[rank]:]
    return places


def _map_file(path: Path, count: int, dtype: numpy.dtype) -> numpy.ndarray:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of "
                         f"{count * dtype.itemsize}")
    return numpy.memmap(path, dtype, "r") if count else numpy.zeros(0, dtype)


def _differences(index: dict[str, Any], specs: Sequence[ArraySpec], vectors: Vectors
                 ) -> Iterator[str]:
    if index["format"] != FORMAT:
        yield f"unknown format {index['format']}"
        return
    if [shape for _, shape in index["arrays"]] != [list(spec.shape) for spec in specs]:
        yield "it has arrays of other shapes"
    mine = {name: [part.dtype.name for part in parts[:1]] for name, parts in vectors.items()}
    if index["vectors"] != mine:
        yield f"it has {index['vectors']}, this optimizer has {mine}"


def _next_serial(folder: Path) -> int:
    try:
        return int(json.loads((folder / INDEX).read_text(encoding="utf-8"))["serial"]) + 1
    except (OSError, ValueError, KeyError):
        return 0


def _file(folder: Path, serial: int, rank: int, name: str) -> Path:
    return folder / f"{serial}-{rank}-{name}"


def _check_all_ranks(comm: Any, faults: Sequence[str]) -> None:
    if comm.allreduce(len(faults)):
        raise_on_all_ranks(comm, faults, "no state was changed")
