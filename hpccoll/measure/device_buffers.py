"""Buffers of a case on a GPU: written and checked on the host, copied both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from hpccoll.cuda import copy_to_device, copy_to_host, device_namespace, synchronize
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import Case, arguments


class DeviceBuffers(CaseBuffers):
    """Buffers of one rank on its current device; see :class:`CaseBuffers`.

    Host copies happen before and after calls, outside the measured time. A call ends with the
    synchronization of the current stream, which is in the measured time.

    Args:
        empty: callback that makes an array of a number of elements and a type on the device.
    """

    on_device = True

    def __init__(self, case: Case, rank: int,
                 empty: Callable[[int, numpy.dtype], Any] | None = None):
        super().__init__(case, rank)
        namespace = device_namespace()
        make = empty or namespace.empty
        hosts = [one for one in (self.send, self.recv) if isinstance(one, numpy.ndarray)]
        self.pairs = [(one, make(one.size, one.dtype)) for one in hosts]
        self.arguments = arguments(case, rank, self._there(self.send), self._there(self.recv))

    def _there(self, host: Any) -> Any:
        """Return the device counterpart of an array; other objects are returned unchanged."""
        return next((there for one, there in self.pairs if one is host), host)

    def refill(self, iteration: int) -> None:
        super().refill(iteration)
        self._push()

    def restore(self) -> None:
        super().restore()
        self._push()

    def wrong(self, iteration: int) -> int:
        self._fetch()
        return super().wrong(iteration)

    def count_changed_input(self, iteration: int) -> int:
        self._fetch()
        return super().count_changed_input(iteration)

    def timed_callable(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable for timing, which also synchronizes the stream of the method."""
        def call(*args: Any) -> Any:
            returned = method(*args)
            synchronize()
            return returned

        return call

    def _push(self) -> None:
        for host, there in self.pairs:
            copy_to_device(host, there)
        synchronize()

    def _fetch(self) -> None:
        for host, there in self.pairs:
            copy_to_host(there, host)
