from collections.abc import Callable
from typing import Any

import numpy

PLACES: int
SIZE_BITS: int
WIDTH: int
OFFSET_BITS: int
NUMBER: int
STAMPS: int
REMEMBERED: int
OPERATIONS: int
BASES: int
DONE: int
WAITING: int
ELSEWHERE: int

class Counters:
    sent: int
    received: int

class Run:
    at: int
    input: int
    output: int
    def advance(self, patience: int = ..., /) -> int: ...
    def restart(self) -> None: ...
    def skip(self) -> None: ...

class Tape:
    owners: tuple[Any, ...]
    pace: int
    def __init__(self, code: Any, sizes: tuple[int, int],
                 channels: tuple[tuple[Counters, int, int, int, int], ...],
                 kernels: tuple[tuple[numpy.ufunc, numpy.dtype[Any]], ...], scratch: numpy.ndarray,
                 owners: Any, waiter: Callable[[Run], object], yields: bool, stamp: int = ...,
                 log: int = ..., alarm: int = ...): ...
    def passes(self) -> bool: ...
    def run(self, input: int, output: int, /) -> None: ...
    def begin(self, input: int, output: int, buffers: Any = ..., /) -> Run: ...

class Calls:
    def store(self, method: int, roles: str, arguments: tuple[Any, ...], target: Any,
              input: tuple[int, int] = ..., output: tuple[int, int] = ..., /) -> bool: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...

class Recognised:
    def __init__(self, slow: Callable[..., Any], method: int, roles: str, names: tuple[str, ...],
                 defaults: tuple[Any, ...], /): ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def has_loop(ufunc: Any, dtype: numpy.dtype[Any], /) -> bool: ...
def set_in_place(value: object, /) -> None: ...
def set_progress(progress: Any, make_token: Callable[[], Token], offset: int, size: int, null: int,
                 /) -> list[Any]: ...
def shortcut(name: str, slow: Callable[..., Any], /) -> Any: ...

def set_operators(sum: Any, prod: Any, max: Any, min: Any, /) -> None: ...

class Numbers:
    def __init__(self, rounds: tuple[tuple[Tape, int, int, bool], ...], floating: int, integer: int,
                 room: int, kept: Any, /): ...

class Token:
    handle: int
    owner: Any

class Lane:
    first: Any
    def enter(self, operation: Any, /) -> None: ...
    def leave(self, operation: Any, /) -> None: ...

class Taped:
    run: Run
    lane: Lane | None
    token: Any
    attendant: Any
    idle: bool
    over: bool
    ended: bool
    busy: bool
    threaded: bool
    def prepare(self, run: Run, lane: Lane | None, threaded: bool, /) -> None: ...
    def begin(self, request: Any, /) -> None: ...
    def attempt(self, patience: int, /) -> int: ...
    def claim(self) -> bool: ...
    def conclude(self, failed: bool, /) -> Any: ...

class Begin:
    def __init__(self, tape: Tape, make: Callable[[Tape], Taped], request: type, /): ...
    def begin(self, input: int, output: int, buffers: Any, /) -> Any: ...
