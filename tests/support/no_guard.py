"""A guard of the calls of one rank alone: nothing is compared, and nobody fails."""

from __future__ import annotations

from typing import Any


class NoGuard:
    """What a context asks of its guard."""

    failure = None
    log = alarm = number = 0

    def __init__(self) -> None:
        self.abandoned: list[Any] = []

    def call_hash(self, description: Any) -> int:
        """Return 0: calls are not compared."""
        return 0

    def opening(self, call_hash: int, tag: int) -> None:
        """Return no callback."""

    end_callback = opening

    def on_alarm(self) -> None:
        """Do nothing."""
