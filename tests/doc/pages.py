"""The pages of the documentation, and what their blocks of code are."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from launch import ROOT

#: Every page that a reader may paste from.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A block, with the comment directly above it. Nothing else may look like one.
BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, NOT_RUN, FILE = "run", "not run: ", "file: "


#: Packages of the extras that pages and examples may need, as they are imported.
FRAMEWORKS = re.compile(r"^\s*(?:import|from) (torch|jax|optax|keras|sklearn|z3)\b", re.MULTILINE)


def missing_frameworks(code: str) -> list[str]:
    """The frameworks that some code imports and that are not installed."""
    return [name for name in FRAMEWORKS.findall(code) if importlib.util.find_spec(name) is None]


def need_frameworks(code: str) -> None:
    """Skip a test whose code imports a framework that is not installed."""
    if missing := missing_frameworks(code):
        pytest.skip(f"needs {missing[0]}")


class Block(NamedTuple):
    """A block of code.

    Attributes:
        line: where its code begins.
        language: what is written behind the quotes.
        mark: the comment above it: ``run``, ``not run: REASON``, ``file: NAME``, or none.
    """

    line: int
    language: str
    code: str
    mark: str


def blocks(text: str) -> list[Block]:
    """Find the blocks of a page."""
    return [Block(text.count("\n", 0, match.start(3)) + 1, match[2], match[3], match[1] or "")
            for match in BLOCK.finditer(text)]


def commands(code: str) -> list[str]:
    """Take the commands out of a console block; a backslash continues one."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page, as git browsers make them of its headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_run(block: Block, page: str) -> bool:
    """Whether the tests run a block: what is marked so, and all the Python of the README."""
    return (block.mark == RUN or block.mark.startswith(FILE)
            or page == "README.md" and block.language == "python")


def complaints(page: str, text: str) -> Iterator[str]:
    """What a page says of its commands wrongly, or not at all."""
    for block in blocks(text):
        where = f"{page}:{block.line}"
        if block.language == "console":
            if block.mark != RUN and not re.fullmatch(r"not run: \S.{9,}", block.mark):
                yield f"{where}: needs <!-- run --> or <!-- not run: reason --> directly above"
            if not re.search(r"^[$#] ", block.code, re.MULTILINE):
                yield f"{where}: has no command; they begin with $ or, for root, with #"
            if block.mark == RUN and re.search(r"^# ", block.code, re.MULTILINE):
                yield f"{where}: what needs root is not run"
        elif block.language in ("bash", "sh", "shell"):
            yield f"{where}: commands go into a console block"
        elif block.language in ("", "text") and re.search(
                r"^(?:[$] |mpiexec |srun |python |hpccoll [a-z]|make |pip )", block.code,
                re.MULTILINE):
            yield f"{where}: looks like commands; these go into a console block"
        elif block.mark == RUN and block.language != "python":
            yield f"{where}: {block.language or 'plain text'} cannot be run"
