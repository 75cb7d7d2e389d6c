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
    def __init__(self, code: Any, sizes: tuple[int, int],
                 channels: tuple[tuple[Counters, int, int, int, int], ...],
                 kernels: tuple[tuple[numpy.ufunc, numpy.dtype[Any]], ...], scratch: numpy.ndarray,
                 owners: Any, waiter: Callable[[Run], object], yields: bool, stamp: int = ...,
                 log: int = ..., alarm: int = ...): ...
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
