"""Cost of a stage in closed form: bytes of memory, and bytes sent.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020; ZeRO++ (Wang et al., 2023) for the quantised forms.
"""

from __future__ import annotations

from typing import NamedTuple

from hpccoll.training.shard.agreement import one_of

#: Size of the scale of a quantised block in bytes.
SCALE_BYTES = 4


class MemoryUse(NamedTuple):
    """Memory of one rank between two steps in bytes, by purpose.

    Attributes:
        parameters: weights that the model reads; at stage 3 this rank's part.
        gradients: gradients of all arrays, or at stages 2 and 3 of this rank's part.
        state: optimizer state, with exact weights if the model reads rounded ones.
    """

    parameters: float
    gradients: float
    state: float

    @property
    def total(self) -> float:
        """Total bytes."""
        return self.parameters + self.gradients + self.state


def footprint(stage: int, count: int, size: int, itemsize: int = 4, state_bytes: int = 8
              ) -> MemoryUse:
    """Return the memory of one of ``size`` ranks for ``count`` elements.

    Args:
        stage: 0 to 3.
        itemsize: bytes of a weight, and of a gradient.
        state_bytes: bytes of state for one element: 8 for Adam on float32, 12 with exact weights
            in addition to 16-bit weights.

    Raises:
        ArgumentError: unknown stage.

    >>> footprint(3, 1000, 4, itemsize=2, state_bytes=12).total
    4000.0
    """
    one_of("stage", stage, (0, 1, 2, 3))
    whole, part = count, count / size
    return MemoryUse((whole if stage < 3 else part) * itemsize,
                       (whole if stage < 2 else part) * itemsize,
                       (whole if stage < 1 else part) * state_bytes)


def sent_bytes(stage: int, count: int, size: int, itemsize: int = 4, persistent: int = 0) -> float:
    """Return the bytes that a rank sends in one step, as the mean over ranks.

    Args:
        persistent: elements of arrays that stay whole at stage 3.

    Raises:
        ArgumentError: unknown stage.

    >>> sent_bytes(3, 1000, 4), sent_bytes(2, 1000, 4)
    (9000.0, 6000.0)
    """
    one_of("stage", stage, (0, 1, 2, 3))
    once = itemsize * (size - 1) / size
    return once * (3 * (count - persistent) + 2 * persistent if stage == 3 else 2 * count)


def gathered_bytes(count: int, size: int, bits: int, block: int) -> float:
    """Return the bytes that a rank sends to gather ``count`` quantised weights (qwZ).

    >>> gathered_bytes(4096, 4, bits=8, block=256)
    3120.0
    """
    return _quantised_bytes(count, bits, block) * (size - 1) / size


def scattered_bytes(count: int, inside: int, across: int, bits: int, block: int) -> float:
    """Return the bytes that a rank sends for a two-level quantised reduce-scatter (qgZ).

    >>> scattered_bytes(4096, 2, 2, bits=4, block=256)
    1584.0
    """
    packed = _quantised_bytes(count, bits, block)
    return packed * (inside - 1) / inside + packed / inside * (across - 1) / across


def _quantised_bytes(count: int, bits: int, block: int) -> float:
    return count * bits / 8 + SCALE_BYTES * count / block
