"""Detection of an installed hpccoll that a source folder hides.

Python searches first the folder of the program, and ``python -m`` the current folder. In a clone
this is the source folder ``hpccoll``, which has no compiled parts unless they were built there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import hpccoll

#: Message text: remedy.
REMEDY = ("run pip install -e '.[...]' in the clone, or start programs in another folder")


def hidden_install(package: Path = Path(hpccoll.__file__).parent, path: Iterable[str] | None = None
                   ) -> str:
    """Return the hidden package with compiled parts, if the running one has none.

    Args:
        path: Python's search path; ``sys.path`` by default.

    Returns:
        A folder; empty if no package is hidden, or the running package has compiled parts.
    """
    if _has_extensions(package):
        return ""
    others = (Path(folder or ".") / "hpccoll" for folder in (sys.path if path is None else path))
    return next((str(other.resolve()) for other in others if _has_extensions(other)), "")


def describe_hidden(package: str, there: str) -> str:
    """Return the sentence about a hidden package, without the remedy."""
    return (f"hpccoll is imported from {package}, which has no compiled parts; the one installed "
            f"in {there} has them")


def _has_extensions(package: Path) -> bool:
    return any((package / "runtime" / "execution" / f"_executor{suffix}").exists()
               for suffix in EXTENSION_SUFFIXES)
