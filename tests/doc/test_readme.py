"""The README's code runs.

A block counts when the line before it is ``<!-- run -->``. Python blocks run on two ranks, so
they may use MPI. In console blocks, the lines that begin with ``$`` are commands; what the README
prints below them is not compared.
"""

import re
import sys
from typing import NamedTuple

import pytest
from launch import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code, and the line where it stands."""

    line: int
    language: str
    code: str


def blocks(text):
    """Find the blocks of a text that are to be run."""
    return [Block(text.count("\n", 0, match.start()) + 2, *match.groups())
            for match in BLOCK.finditer(text)]


def commands(code):
    """Take the commands out of a console block; a backslash continues one."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE)


def test_blocks_and_commands_are_found():
    text = "a\n<!-- run -->\n```python\nx = 1\n```\n```python\nnot this\n```\n" \
           "<!-- run -->\n```console\n$ one \\\n  more\noutput\n$ two\n```\n"
    found = blocks(text)
    assert found == [Block(3, "python", "x = 1\n"),
                     Block(10, "console", "$ one \\\n  more\noutput\n$ two\n")]
    assert commands(found[1].code) == ["one \\\n  more", "two"]


def test_every_mark_belongs_to_a_block_that_can_be_run():
    text = README.read_text(encoding="utf-8")
    found = blocks(text)
    assert len(found) == text.count("<!-- run -->")
    assert {block.language for block in found} == {"python", "console"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", blocks(README.read_text(encoding="utf-8")) if README.exists() else [],
    ids=lambda block: f"line {block.line}")
def test_block(capture, job, tmp_path, block):
    if block.language == "python":
        program = tmp_path / "block.py"
        program.write_text(block.code)
        status, output = job(2, sys.executable, "-m", "mpi4py", program)
        assert status == 0, output
    # Whatever the commands write goes here.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands(block.code) if block.language == "console" else ():
        status, output = capture("bash", "-c", command, cwd=tmp_path, seconds=120)
        assert status == 0, f"$ {command}\n{output}"
