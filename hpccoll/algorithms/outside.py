"""Algorithms outside the table: in files, modules and installed packages.

``FILE.py:NAME`` and ``PACKAGE.MODULE:NAME`` are an :class:`~hpccoll.algorithms.entry.Algorithm` or
a builder, and can replace any name of the table. ``FILE.json`` and ``FILE.xml`` are schedules as
data (:mod:`~hpccoll.algorithms.files`). A text without a dot is always a name, so ``knomial:k`` is
an error. A package adds names by entry points of the group ``hpccoll.algorithms``: one or several
``Algorithm``. They are read only if the table lacks a name. Algorithms of this module are proved
before they run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.files import SUFFIXES
from hpccoll.algorithms.files import entry as file_entry
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from pathlib import Path

#: The group of entry points.
GROUP = "hpccoll.algorithms"


#: Names that are arguments of ``schedule`` or options, not parameters of algorithms.
NOT_PARAMETERS = ("collective", "algorithm", "size", "root", "topology")


def is_reference(text: str) -> bool:
    """Return True for ``my.py:torus``, False for a name with or without parameters."""
    place, colon, name = text.partition(":")
    return place.endswith((*SUFFIXES, ".py")) or bool(colon) and ("." in place or "/" in place)


def split(text: str) -> tuple[str, list[str]]:
    """Split the name of an algorithm from its parameters.

    >>> split("knomial:k=8")
    ('knomial', ['k=8'])
    >>> split("my.py:torus:x=2:y=4")
    ('my.py:torus', ['x=2', 'y=4'])
    """
    words = list(map(str.strip, text.split(":")))
    named = (is_reference(text) and not words[0].endswith(SUFFIXES)
             and len(words) > 1 and "=" not in words[1])
    first = 2 if named else 1
    return ":".join(words[:first]), words[first:]


def read_algorithm(text: str, option: str = "algorithm") -> tuple[str, dict[str, int]]:
    """Parse the name of an algorithm with its parameters.

    >>> read_algorithm("knomial:k=8")
    ('knomial', {'k': 8})

    Raises:
        ArgumentError: malformed parameters; names ``option``.
    """
    name, settings = split(text)
    if "," in name and not is_reference(name):
        raise ArgumentError(option, f"cannot read {text!r}",
                            f"write parameters like {name.split(',')[0]}:k=4")
    return name, parameters(settings, option)


def parameters(texts: Iterable[str], option: str = "--param") -> dict[str, int]:
    """Parse parameters of an algorithm; ``option`` is their option, for errors.

    >>> parameters(["k=4"])
    {'k': 4}

    Raises:
        ArgumentError: not of the form NAME=VALUE with an integer, or duplicate.
    """
    values: dict[str, int] = {}
    for text in texts:
        name, _, value = map(str.strip, text.partition("="))
        if not name.isidentifier() or not value.isdecimal():
            raise ArgumentError(option, f"cannot read {text!r}",
                                "write it like k=4, behind a name like my.py:torus:x=2:y=4")
        if name in NOT_PARAMETERS:
            raise ArgumentError(option, f"{name} is not an algorithm parameter",
                                "it is an argument or an option of the command")
        if name in values:
            raise ArgumentError(option, f"{name} is given twice")
        values[name] = int(value)
    return values


def display_name(label: str) -> str:
    """Return the name of an algorithm in tables: without the folders of a file.

    >>> display_name("my/folder/my.py:torus:x=2"), display_name("knomial:k=8")
    ('my.py:torus:x=2', 'knomial:k=8')
    """
    from pathlib import Path
    if not is_reference(label):
        return label
    place, colon, rest = label.partition(":")
    return Path(place).name + colon + rest


def column_names(labels: Sequence[str]) -> list[str]:
    """Return column names for algorithms, with parameters only if names are equal.

    >>> column_names(["my/my.py:torus:x=2", "ring:k=2", "ring:k=4"])
    ['my.py:torus', 'ring:k=2', 'ring:k=4']
    """
    short = [display_name(split(label)[0]) for label in labels]
    return [name if short.count(name) == 1 else display_name(label)
            for name, label in zip(short, labels)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar name; empty if there is none."""
    from difflib import get_close_matches
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}" if near else ""


@cache
def load(reference: str) -> Algorithm:
    """Load ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``; a file runs once in a process.

    Raises:
        ArgumentError: there is no such file, module or name, it raises an error, or the object is
            neither an ``Algorithm`` nor a builder.
    """
    if reference.endswith(SUFFIXES):
        return file_entry(reference)
    if reference.endswith(".py"):
        known = _algorithm_names(_file(reference))
        raise ArgumentError("algorithm", f"{reference!r} is a file, not an algorithm",
                            f"write {reference}:{known[0]}; it has {', '.join(known)}" if known
                            else "it has none")
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise ArgumentError("algorithm", f"cannot read {reference!r}",
                            "write FILE.py:NAME or PACKAGE.MODULE:NAME; with parameters "
                            "my.py:torus:x=2")
    module = _file(place) if place.endswith(".py") else _module(place)
    value = getattr(module, name, None)
    if value is None:
        known = _algorithm_names(module)
        raise ArgumentError("algorithm", f"{place} has no {name!r}",
                            f"it has {', '.join(known) or 'no algorithm'}"
                            + did_you_mean(name, known))
    if isinstance(value, Algorithm):
        return _load_algorithm(value, reference) if value.name else _load_algorithm(
            replace(value, name=_title(value, name)), reference)
    if not callable(value):
        raise ArgumentError("algorithm", f"{reference} is {value!r}",
                            "name an hpccoll.Algorithm, or a function that builds a rank's program")
    return Algorithm(value, name=name)


def _algorithm_names(module: ModuleType) -> list[str]:
    """Return the names of a module's algorithms, then those of its own functions."""
    held = {name: value for name, value in vars(module).items() if isinstance(value, Algorithm) or (
        callable(value) and getattr(value, "__module__", "") == module.__name__)}
    return sorted(held, key=lambda name: not isinstance(held[name], Algorithm))


def _title(entry: Algorithm, name: str) -> str:
    return name if entry.label in ("<lambda>", "custom") else entry.label


def _load_algorithm(entry: Algorithm, where: str) -> Algorithm:
    if entry.collective and entry.collective not in COLLECTIVES:
        raise ArgumentError("collective", f"{where} implements {entry.collective!r}, which is "
                                          "unknown", f"choose from {', '.join(COLLECTIVES)}"
                            + did_you_mean(entry.collective, COLLECTIVES))
    return entry


def _file(text: str) -> ModuleType:
    from pathlib import Path
    path = Path(text)
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ArgumentError("algorithm", f"there is no file {text!r}",
                            "a relative path starts at the current folder"
                            + did_you_mean(path.name, beside))
    name = f"hpccoll_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError("algorithm", f"{text!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with _runs(text), _import_path(path.resolve().parent):
        # Dataclasses and pickle look up modules.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    from pathlib import Path
    with _runs(name), _import_path(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Add a folder to the import path, as for a script in that folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _runs(place: str) -> Iterator[None]:
    try:
        yield
    # A file may call sys.exit.
    except (Exception, SystemExit) as error:
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.endswith(place):
                line = trace.tb_lineno
            trace = trace.tb_next
        where = f" in line {line}" if line else ""
        raise ArgumentError("algorithm", f"{place} does not run: {type(error).__name__}{where}: "
                                         f"{error}") from error


def installed_algorithms(collective: str) -> dict[str, Algorithm]:
    """Return the algorithms of installed packages for a collective, by name, except broken ones."""
    return {point.name: entry for point in _points() for entry in _entry_point_algorithms(point)
            if entry.collective == collective}


def find(collective: str, name: str) -> Algorithm | None:
    """Return an algorithm outside the table; ``None`` if there is none.

    Raises:
        ArgumentError: an invalid reference, or an algorithm of another collective.
    """
    if is_reference(name):
        entry = load(name)
        if entry.collective and entry.collective != collective:
            raise ArgumentError("collective", f"{name} implements {entry.collective}, not "
                                              f"{collective}")
        return entry
    return next((entry for point in _points() if point.name == name
                 for entry in _entry_point_algorithms(point)
                 if entry.collective == collective), None)


@cache
def _points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # slow: a tenth of the time of ``import hpccoll``
    return tuple(entry_points(group=GROUP))


@cache
def _entry_point_algorithms(point: EntryPoint) -> tuple[Algorithm, ...]:
    """Return the algorithms of an entry point; warn and return none if it is broken."""
    try:
        value: Any = point.load()
        entries = (value,) if isinstance(value, Algorithm) else tuple(value)
        for entry in entries:
            if not isinstance(entry, Algorithm) or not entry.collective:
                raise TypeError(f"{entry!r} is not an hpccoll.Algorithm with a collective")
            _load_algorithm(entry, point.value)
    except (Exception, SystemExit) as error:
        package = point.dist.name if point.dist is not None else point.value
        warnings.warn(f"hpccoll: cannot load algorithm {point.name!r} of package {package}: "
                      f"{type(error).__name__}: {error}", RuntimeWarning,
                      stacklevel=2)
        return ()
    return tuple(replace(entry, name=entry.name or point.name) for entry in entries)
