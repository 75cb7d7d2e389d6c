"""Subclass of a communicator class that records kind and time of its calls.

    call --> method of the base class, between two clock reads --> ring of events

Machine code records cached blocking calls itself, once it has learned their kinds here. Requests
have a recording class, too: a wait for one is counted with the call that began it. The class
methods of mpi4py that wait for several requests (``Waitall``) are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from time import perf_counter_ns
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.comm.blocking import BARRIER
from hpccoll.comm.cache import CallCache
from hpccoll.comm.methods import Method
from hpccoll.comm.recognition import NUMBERS, recognise_calls
from hpccoll.ir.methods import BLOCKING, MPI4PY, TABLE
from hpccoll.ir.operators import OPERATORS
from hpccoll.machine.groups import private_copy
from hpccoll.measure.profiling.observer import OBSERVER, write_at_end
from hpccoll.measure.profiling.record import INIT, OBJECTS, WAIT, CallKind
from hpccoll.runtime.events.ring import events

#: Lower-case methods that are collective, but ``barrier``: it calls ``Barrier``, which is recorded.
LOWER_CASE = tuple(name for name, row in TABLE.items() if row.objects and row.roles)
#: Those that mpi4py runs.
OF_MPI4PY = {f"{name} of objects" for name in LOWER_CASE if TABLE[name].objects == MPI4PY}
NAMES = {id(getattr(MPI, name.upper())): name for name in OPERATORS}
IN_PLACE, NATIVE = MPI.IN_PLACE, "native"
#: Maximum number of cached kinds by arguments; sizes may be new in every call.
MOST_KEYS = 4096
#: Number of methods whose cached calls machine code records.
RECOGNISED = sum(title in TABLE for title in NUMBERS)
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
    def _call(self: Any, method: Method, *args: Any) -> Any:
        return _record(self, method, args, partial(cls._call, self, method))

    def Barrier(self: Any) -> None:
        _record(self, BARRIER, (), partial(getattr(cls.Barrier, "__wrapped__", cls.Barrier), self))

    members: dict[str, Any] = {"_watched": True, "__module__": cls.__module__,
                               "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
                               "_call": _call, "Barrier": recognise_calls(Barrier)}
    for name, row in TABLE.items():
        upper, root_at = name.capitalize(), row.roles.find("n")
        members[f"I{name}"] = _request_method(getattr(cls, f"I{name}"), f"i{name}", root_at)
        members[f"{upper}{INIT}"] = _request_method(getattr(cls, f"{upper}{INIT}"), name + INIT,
                                                    root_at)
    for name in LOWER_CASE:  # which return what they receive
        members[name] = _object_method(getattr(cls, name), f"{name} of objects",
                                       TABLE[name].roles.replace("r", "").find("n"))
    return type(cls.__name__, (cls,), members)


def _record(comm: Any, method: Method, args: tuple[Any, ...], run: Callable[..., Any]) -> Any:
    """Run a call that machine code does not hold; record it if it is a blocking one.

    A call inside another one is a part of that one.
    """
    if method.form != BLOCKING or comm._check_alive().call_guard.outer_thread:
        return run(*args)
    number = observe(comm)
    start = perf_counter_ns()
    run(*args)
    stop = perf_counter_ns()
    kind = _kind(comm, method.title, args, {}, method.row.roles.find("n"))
    events().add_call(number, kind, start, stop, True)
    if comm._calls is not None and method.title in NUMBERS:
        comm._calls.record(RECOGNISED, number)
        comm._calls.learn(NUMBERS[method.title], method.row.roles, args, kind)
    return None


def _object_method(method: Callable, title: str, root_at: int) -> Callable:
    """Return a blocking method on objects that records its calls."""
    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        comm = observe(self)
        start = perf_counter_ns()
        result = method(self, *args, **named)
        stop = perf_counter_ns()
        kind = self._cache.observed.get(title) if len(args) == 1 and not named else None
        if kind is None:
            named.pop("sendobj" if "sendobj" in named else "obj", None)  # of any size and type
            kind = _kind(self, title, args[1:], named, root_at - 1 if args else root_at)
            if len(args) == 1 and not named:
                self._cache.observed[title] = kind
        events().add_call(comm, kind, start, stop, True)
        return result

    return call


def _request_method(method: Callable, title: str, root_at: int) -> Callable:
    """Return a method that makes a request; a persistent one is counted at its start."""
    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        comm = observe(self, False)
        start = perf_counter_ns()
        request = method(self, *args, **named)
        stop = perf_counter_ns()
        kind = _kind(self, title, args, named, root_at)
        if not title.endswith(INIT):
            events().add_call(comm, kind, start, stop, True)
        return watch_request(request, comm, kind)

    return call


def observe(comm: Any, blocking: bool = True) -> int:
    """Return the number of a communicator; compare clocks in the first call of all ranks."""
    lifetime = comm._check_alive()
    if lifetime.observed is None:
        lifetime.observed = OBSERVER.number_of(comm)
        if comm._config.trace:
            write_at_end(comm._config.trace)
    number: int = lifetime.observed
    # A nonblocking call must not wait for other ranks.
    if blocking and not OBSERVER.ahead and comm.Get_size() == MPI.COMM_WORLD.Get_size():
        comm._private()  # raises if this rank alone is observed
        private = private_copy(MPI.Intracomm(MPI.COMM_WORLD))
        OBSERVER.align(private)
        private.Free()
    return number


def _kind(comm: Any, title: str, args: Sequence[Any], named: dict[str, Any], root_at: int) -> int:
    """Return the number of a call's kind, cached or resolved again."""
    report, comm._served = comm._served, None
    cache: CallCache = comm._cache
    key = (title, *map(_token, args), *named, *map(_token, named.values()))
    if report is None and key in cache.observed:
        number: int = cache.observed[key]
        return number
    served, nbytes = report or (NATIVE, None)
    given = (*args, *named.values())
    if title.endswith("objects"):
        served, nbytes = NATIVE if title in OF_MPI4PY else "objects", OBJECTS
    elif nbytes is None:
        nbytes = max(map(_nbytes, given), default=0)
    dtypes = [one.dtype for one in map(_array, given) if one is not None]
    operators = [NAMES.get(id(one), "user") for one in given if isinstance(one, MPI.Op)]
    if not operators and ("reduce" in title or "scan" in title):
        operators = ["sum"]  # by default
    what = " ".join([*(f"{one.kind}{one.itemsize}" for one in dtypes[:1]), *operators[:1]])
    root = named.get("root", args[root_at] if 0 <= root_at < len(args) else 0)
    kind = CallKind(title, nbytes, what, root if root_at >= 0 and isinstance(root, int) else -1,
                    served)
    observed = comm._lifetime.observed
    if comm._context is not None and comm._context.phases is not None:
        OBSERVER.phases[observed] = comm._context.phases
    number = events().kind((observed, kind))
    if len(cache.observed) >= MOST_KEYS:
        cache.observed.clear()
    cache.observed[key] = number
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
def watch_request(request: Any, comm: int, kind: int) -> Any:
    """Return the request of a call of a kind, with a class that records its waits."""
    if type(request) not in _classes:
        _classes[type(request)] = _watched_request(type(request))
    cls = _classes[type(request)]
    if type(request).__module__.startswith("mpi4py"):
        request = cls(request)
    else:
        request.__class__ = cls
    request._observed = comm, kind
    return request


def _watched_request(cls: Any) -> Any:
    def Wait(self: Any, status: MPI.Status | None = None) -> Any:
        start = perf_counter_ns()
        result = cls.Wait(self, status)
        comm, kind = self._observed
        number, one = events().kinds[kind]
        events().add_call(comm, events().kind((number, one._replace(title=one.title + WAIT))),
                          start, perf_counter_ns(), False)
        return result

    def Start(self: Any) -> None:
        start = perf_counter_ns()
        cls.Start(self)
        comm, kind = self._observed
        events().add_call(comm, kind, start, perf_counter_ns(), False)

    members: dict[str, Any] = {"Wait": wraps(cls.Wait)(Wait), "__module__": cls.__module__,
                               "__qualname__": cls.__qualname__, "_observed": None}
    if issubclass(cls, MPI.Prequest):
        members["Start"] = wraps(cls.Start)(Start)
    return type(cls.__name__, (cls,), members)
