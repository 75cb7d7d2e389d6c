"""What a communicator knows of its ranks' devices: which way their arrays' data goes."""

from __future__ import annotations

from hpccoll.arrays.evidence import agreed
from hpccoll.arrays.ways import Told, lines
from hpccoll.comm.base import Base
from hpccoll.runtime.context import Context, existing


class Ways:
    """What all ranks of a communicator told of the ways of device data.

    Attributes:
        told: by rank; ``None`` where nobody has asked yet.
    """

    def __init__(self, context: Context):
        self.context = context
        self.told: list[Told] | None = None

    def look(self) -> list[Told]:
        """What all ranks tell; the first time is collective."""
        if self.told is None:
            guard = self.context.guard
            ask = guard.attended(agreed) if guard is not None else agreed
            self.told = ask(self.context.comm)
        return self.told

    def free(self) -> None:
        """Nothing: it holds no resources."""


class DeviceWays(Base):
    """Communicators that tell about devices."""

    @property
    def ways(self) -> str:
        """Which ways there are for device arrays between pairs of ranks, and why not the others.

        The first look is collective, and takes seconds where there are devices. Afterwards
        ``explain`` says it, too.
        """
        with self._check_alive().entrance:
            return "\n".join(lines(self._private().service(Ways).look())) + "\n"

    def _known_ways(self) -> str:
        """What ``explain`` says: nothing before the first look at :attr:`ways`."""
        context = existing(self)
        told = context.service(Ways).told if context is not None and not context.freed else None
        if told is None or not any(each.device for each in told):
            return ""
        return "\nDevice arrays:\n" + "".join(f"  {line}\n" for line in lines(told))
