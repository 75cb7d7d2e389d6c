"""Algorithms from outside the table: of a file, of a module, of an installed package.

``FILE.py:NAME`` and ``PACKAGE.MODULE:NAME`` name an
:class:`~hpccoll.algorithms.entry.Algorithm`, or a builder, wherever a name of the table is taken.
``FILE.json`` and ``FILE.xml`` are schedules as data (:mod:`~hpccoll.algorithms.files`).
What has no dot is a name of the table, so that ``knomial:k`` stays a slip. A package adds names of
its own by entry points of the group ``hpccoll.algorithms``, each an ``Algorithm`` or several of
them; they are looked at when the table does not know a name, not before. What comes from here is
proved before it serves a call.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.files import SUFFIXES
from hpccoll.algorithms.files import entry as file_entry
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The group of entry points.
GROUP = "hpccoll.algorithms"


#: What is no parameter of an algorithm, but an argument of ``schedule`` or an option.
NOT_PARAMETERS = ("collective", "algorithm", "size", "root", "topology")


def is_reference(text: str) -> bool:
    """Return True for ``my.py:torus``, False for a name, with or without settings."""
    place, colon, name = text.partition(":")
    return place.endswith((*SUFFIXES, ".py")) or bool(colon) and ("." in place or "/" in place)


def split(text: str) -> tuple[str, list[str]]:
    """Divide what names an algorithm from the settings behind it.

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
    """Read an algorithm with its parameters, as it is written everywhere.

    >>> read_algorithm("knomial:k=8")
    ('knomial', {'k': 8})

    Raises:
        ArgumentError: parameters that cannot be read; names ``option``.
    """
    name, settings = split(text)
    if "," in name and not is_reference(name):
        raise ArgumentError(option, f"cannot read {text!r}",
                            f"write parameters like {name.split(',')[0]}:k=4")
    return name, parameters(settings, option)


def parameters(texts: Iterable[str], option: str = "--param") -> dict[str, int]:
    """Read parameters of an algorithm; ``option`` is where they were given.

    >>> parameters(["k=4"])
    {'k': 4}

    Raises:
        ArgumentError: not of the form NAME=VALUE with a whole number, or given twice.
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
    if not is_reference(label):
        return label
    place, colon, rest = label.partition(":")
    return Path(place).name + colon + rest


def column_names(labels: Sequence[str]) -> list[str]:
    """Heads of columns for algorithms: without parameters where the names alone differ.

    >>> column_names(["my/my.py:torus:x=2", "ring:k=2", "ring:k=4"])
    ['my.py:torus', 'ring:k=2', 'ring:k=4']
    """
    short = [display_name(split(label)[0]) for label in labels]
    return [name if short.count(name) == 1 else display_name(label)
            for name, label in zip(short, labels)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the name that is nearest, or nothing."""
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}" if near else ""


@cache
def load(reference: str) -> Algorithm:
    """Read ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``; a file runs once in a process.

    Raises:
        ArgumentError: there is no such file, module or name, it does not run, or what it names is
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
    """The names of a module's algorithms, then those of its own functions."""
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
        # Dataclasses and pickles look their module up.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    with _runs(name), _import_path(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Find modules in a folder too, as a script finds those beside it."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _runs(place: str) -> Iterator[None]:
    try:
        yield
    # A file may end the process, or raise what no program catches by accident.
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
    """Look for an algorithm outside the table; ``None`` where there is none.

    Raises:
        ArgumentError: a reference that cannot be read, or to an algorithm of another collective.
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
    from importlib.metadata import entry_points  # a tenth of the time of ``import hpccoll``
    return tuple(entry_points(group=GROUP))


@cache
def _entry_point_algorithms(point: EntryPoint) -> tuple[Algorithm, ...]:
    """The algorithms of one entry point; none, and a warning, where it is broken."""
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
