"""What :meth:`Exchange.submit` returns: a result to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpccoll.training.exchange.brought import Parcel


class Handle:
    """Arrays under way.

    Args:
        parcel: they.
        wait: waits for it.
        grouped: the results are a list.
    """

    def __init__(self, parcel: Parcel, wait: Callable[[Parcel], list[Any]], grouped: bool):
        self._parcel, self._wait, self._grouped = parcel, wait, grouped
        self._results: list[Any] | None = None

    def done(self) -> bool:
        """Tell whether the result is there; never waits."""
        return self._parcel.done

    def wait(self) -> Any:
        """The result, or the results of a group; the name may be submitted again.

        Raises:
            ExchangeError: a rank has left, or ranks disagree on the array.
        """
        if self._results is None:
            self._results = self._wait(self._parcel)
        return self._results if self._grouped else self._results[0]
