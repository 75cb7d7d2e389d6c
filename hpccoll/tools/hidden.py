"""An installed hpccoll that the folder of its source hides, and what that costs.

Python looks first where a program lies, and ``python -m`` where it is started. In a clone that is
the folder ``hpccoll`` of the source, which has no compiled parts unless they were built there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import hpccoll

#: What to do about it.
REMEDY = ("run pip install -e '.[...]' in the clone, or start programs in another folder")


def hidden(package: Path = Path(hpccoll.__file__).parent, path: Iterable[str] | None = None
           ) -> str:
    """The installed package that has compiled parts, where the one that runs has none.

    Args:
        package: folder of the one that runs.
        path: folders where Python looks; ``sys.path`` by default.

    Returns:
        A folder; empty where nothing is hidden, or nothing is lost by it.
    """
    if _compiled(package):
        return ""
    others = (Path(folder or ".") / "hpccoll" for folder in (sys.path if path is None else path))
    return next((str(other.resolve()) for other in others if _compiled(other)), "")


def told(package: str, there: str) -> str:
    """The sentence about it, without what to do."""
    return (f"hpccoll is imported from {package}, which has no compiled parts; the one installed "
            f"in {there} has them")


def _compiled(package: Path) -> bool:
    return any((package / "runtime" / "execution" / f"_tape{suffix}").exists()
               for suffix in EXTENSION_SUFFIXES)
