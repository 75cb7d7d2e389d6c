"""Figures without a screen, and the files that they are drawn into."""

from __future__ import annotations

from typing import Any

from hpccoll.atomic_file import writable
from hpccoll.errors import ArgumentError, HpccollError


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


def check(path: str) -> None:
    """Find out whether a picture can be drawn into a file.

    Raises:
        HpccollError: matplotlib is not installed.
        ArgumentError: an unknown format, or a folder that cannot be written to.
    """
    formats = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.rpartition(".")[2].lower() not in formats:
        raise ArgumentError("--plot", f"{path!r} ends in no known format",
                            f"choose from {', '.join(sorted(formats))}")
    if not writable(path):
        raise ArgumentError("--plot", f"cannot write {path!r}")
