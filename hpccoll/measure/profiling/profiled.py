"""Subclass of a communicator class that records kind and time of its calls.

    call --> method of the base class, between two clock reads --> CallRecord

Requests have such a class, too: a wait for one is counted with the call that began it. The class
methods of mpi4py that wait for several requests (``Waitall``) are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import update_wrapper, wraps
from time import perf_counter
from typing import Any, cast

from mpi4py import MPI
from numpy import ndarray

from hpccoll.ir.methods import MPI4PY, TABLE
from hpccoll.ir.operators import OPERATORS
from hpccoll.machine.groups import private_copy
from hpccoll.measure.profiling.observer import OBSERVER, write_at_end
from hpccoll.measure.profiling.record import INIT, OBJECTS, CallKind, CallRecord
from hpccoll.runtime.execution.built import BUILT

if BUILT:
    from hpccoll.runtime.execution import _executor

#: Lower-case methods that are collective, but ``barrier``: it calls ``Barrier``, which is recorded.
LOWER_CASE = tuple(name for name, row in TABLE.items() if row.objects and row.roles)
#: Those that mpi4py runs.
OF_MPI4PY = {f"{name} of objects" for name in LOWER_CASE if TABLE[name].objects == MPI4PY}
NAMES = {id(getattr(MPI, name.upper())): name for name in OPERATORS}
IN_PLACE, NATIVE = MPI.IN_PLACE, "native"
#: Maximum number of cached kinds by arguments; sizes may be new in every call.
MOST_KEYS = 4096
#: Cached classes by their base class.
_classes: dict[Any, Any] = {}


def profiled_class(cls: Any) -> Any:
    """Return a recording subclass of a class of communicators; itself if it is one."""
    if "_watched" in vars(cls):
        return cls
    if cls not in _classes:
        _classes[cls] = _create_class(cls)
    return _classes[cls]


def _create_class(cls: Any) -> Any:
    members: dict[str, Any] = {"_watched": True, "__module__": cls.__module__,
                               "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    for name, row in TABLE.items():
        upper, root_at = name.capitalize(), row.roles.find("n")
        members[upper] = _blocking_method(getattr(cls, upper), name, root_at)
        members[f"I{name}"] = _request_method(getattr(cls, f"I{name}"), f"i{name}", root_at, False)
        members[f"{upper}{INIT}"] = _request_method(getattr(cls, f"{upper}{INIT}"), name + INIT,
                                                    root_at, True)
    for name in LOWER_CASE:  # which return what they receive
        members[name] = _blocking_method(getattr(cls, name), f"{name} of objects",
                                         TABLE[name].roles.replace("r", "").find("n"))
    return type(cls.__name__, (cls,), members)


def _blocking_method(method: Callable, title: str, root_at: int) -> Callable:
    """Return a blocking method that records its calls; ``root_at`` is negative without a root."""
    def slow(comm: Any, key: Hashable, start: float, stop: float, args: tuple[Any, ...],
             named: Mapping[str, Any]) -> None:
        """Record a call whose kind is unknown or out of date."""
        kind = _kind(comm, key, title, (*args, *named.values()),
                     named.get("root", args[root_at] if 0 <= root_at < len(args) else 0)
                     if root_at >= 0 else -1)
        comm._seen.learn(key, kind)
        if comm._context is not None and comm._record.ranks:
            comm._record.moments = comm._context.moments
        comm._seen.reported = False
        comm._record.add(kind, start, stop)

    if BUILT:
        return cast(Callable, update_wrapper(_executor.WatchedMethod(
            method, observe, slow, root_at, title.endswith("objects")), method))

    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        seen = self._seen or observe(self)
        start = perf_counter()
        result = method(self, *args, **named)
        stop = perf_counter()
        key = (title, *map(_token, args), *named, *map(_token, named.values()))
        kind = None if seen.reported else seen.known.get(key)
        if kind is None:
            slow(self, key, start, stop, args, named)
        else:
            self._record.add(kind, start, stop)
        return result

    return call


def _request_method(method: Callable, title: str, root_at: int, prepared: bool) -> Callable:
    """Return a method that makes a request; a persistent one is counted at its start."""
    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if self._seen is None:
            observe(self, False)
        start = perf_counter()
        request = method(self, *args, **named)
        stop = perf_counter()
        key = (title, *map(_token, args), *named, *map(_token, named.values()))
        kind = _kind(self, key, title, (*args, *named.values()),
                     named.get("root", args[root_at] if 0 <= root_at < len(args) else 0)
                     if root_at >= 0 else -1)
        if not prepared:
            self._record.add(kind, start, stop)
        return watch_request(request, self._record, kind)

    return call


class PlainSeen:
    """Kinds of calls by their arguments, without the compiled executor."""

    def __init__(self) -> None:
        self.known: dict[Hashable, int] = {}
        self.reported = False

    def learn(self, key: Hashable, kind: int) -> None:
        if len(self.known) >= MOST_KEYS:
            self.known.clear()
        self.known[key] = kind


def observe(comm: Any, blocking: bool = True) -> Any:
    """Return the recorder of a communicator; compare clocks in calls of all ranks."""
    lifetime = comm._check_alive()
    record: CallRecord | None = lifetime.observed
    if record is None:
        record = lifetime.observed = OBSERVER.record_of(comm)
        if BUILT and record.rows is None:
            record.rows = _executor.CallRows(record.absorb)
        if comm._config.trace:
            write_at_end(comm._config.trace)
    comm._record, cache = record, comm._cache
    if cache.seen is None:
        cache.seen = _executor.Seen(cast(Any, record.rows)) if BUILT else PlainSeen()
    comm._seen = cache.seen
    world = MPI.Intracomm(MPI.COMM_WORLD)
    # A nonblocking call must not wait for other ranks.
    if blocking and not OBSERVER.ahead and comm.Get_size() == world.Get_size():
        comm._private()  # raises if this rank alone is observed
        private = private_copy(world)
        OBSERVER.align(private)
        private.Free()
    return comm._seen


def _kind(comm: Any, key: Hashable, title: str, given: Sequence[Any], root: Any) -> int:
    """Return the number of a call's kind, cached or resolved again."""
    report, comm._served = comm._served, None
    known = comm._cache.observed
    if report is None and (title, key) in known:
        number: int = known[title, key]
        return number
    served, nbytes = report or (NATIVE, None)
    if title.endswith("objects"):
        served, nbytes = NATIVE if title in OF_MPI4PY else "objects", OBJECTS
    elif nbytes is None:
        nbytes = max(map(_nbytes, given), default=0)
    dtypes = [one.dtype for one in map(_array, given) if one is not None]
    operators = [NAMES.get(id(one), "user") for one in given if isinstance(one, MPI.Op)]
    if not operators and ("reduce" in title or "scan" in title):
        operators = ["sum"]  # by default
    what = " ".join([*(f"{one.kind}{one.itemsize}" for one in dtypes[:1]), *operators[:1]])
    number = comm._record.number_of(CallKind(title, nbytes, what,
                                             root if isinstance(root, int) else -1, served))
    if len(known) >= MOST_KEYS:
        known.clear()
    known[title, key] = number
    return number


def _token(argument: Any) -> Any:
    """Return a hashable key of an argument."""
    if type(argument) is ndarray:
        return argument.nbytes, argument.dtype.num
    if type(argument) is int:
        return argument
    found = NAMES.get(id(argument))
    if found is not None or argument is None:
        return found
    if argument is IN_PLACE:
        return "in place"
    if isinstance(argument, (list, tuple)) and argument:
        # Equal calls with other spellings have the key of their data.
        return _nbytes(argument), *(one for one in argument[1:] if type(one) is int)
    return type(argument)


def _array(argument: Any) -> Any:
    """Return the array of a buffer argument; ``None`` if there is none."""
    one = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
    return one if isinstance(one, ndarray) else None


def _nbytes(argument: Any) -> int:
    one = _array(argument)
    return one.nbytes if one is not None else 0


# -- requests ----------------------------------------------------------------------------------
def watch_request(request: Any, record: CallRecord, kind: int) -> Any:
    """Return the request, with a class that records its waits."""
    if type(request) not in _classes:
        _classes[type(request)] = _watched_request(type(request))
    cls = _classes[type(request)]
    if type(request).__module__.startswith("mpi4py"):
        request = cls(request)
    else:
        request.__class__ = cls
    request._noted = record, kind
    return request


def _watched_request(cls: Any) -> Any:
    def Wait(self: Any, status: MPI.Status | None = None) -> Any:
        start = perf_counter()
        result = cls.Wait(self, status)
        record, kind = self._noted
        record.add_wait(kind, start, perf_counter())
        return result

    def Start(self: Any) -> None:
        start = perf_counter()
        cls.Start(self)
        record, kind = self._noted
        record.add(kind, start, perf_counter())

    members: dict[str, Any] = {"Wait": wraps(cls.Wait)(Wait), "__module__": cls.__module__,
                               "__qualname__": cls.__qualname__, "_noted": None}
    if issubclass(cls, MPI.Prequest):
        members["Start"] = wraps(cls.Start)(Start)
    return type(cls.__name__, (cls,), members)
