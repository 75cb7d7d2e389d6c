"""Figures without a screen, and without MPI."""

from __future__ import annotations

from typing import Any

from hpccoll.errors import HpccollError


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches.

    Raises:
        HpccollError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HpccollError("drawing needs matplotlib; "
                           "install it with: pip install 'hpccoll[plot]'") from error
    return Figure(figsize=(width, height))
