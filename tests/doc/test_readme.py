"""The README's code runs.

Every Python block runs, on two ranks, so it may use MPI. A console block runs when the line before
it is ``<!-- run -->``: the lines that begin with ``$`` are its commands, and what the README prints
below them is not compared.
"""

import re
import sys
from typing import NamedTuple

import pytest
from launch import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MARK = "<!-- run -->"
BLOCK = re.compile(rf"^({MARK}\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code, and the line where it begins."""

    line: int
    language: str
    code: str


def blocks(text):
    """Find the blocks of a text that are to be run."""
    return [Block(text.count("\n", 0, match.start(3)) + 1, match[2], match[3])
            for match in BLOCK.finditer(text) if match[1] or match[2] == "python"]


def commands(code):
    """Take the commands out of a console block; a backslash continues one."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE)


def test_blocks_and_commands_are_found():
    text = (f"a\n{MARK}\n```console\n$ one \\\n  more\noutput\n$ two\n```\n"
            "```python\nx = 1\n```\n```console\n$ not this\n```\n```text\nnor this\n```\n")
    found = blocks(text)
    assert found == [Block(4, "console", "$ one \\\n  more\noutput\n$ two\n"),
                     Block(10, "python", "x = 1\n")]
    assert commands(found[0].code) == ["one \\\n  more", "two"]


def test_every_mark_belongs_to_a_block():
    found = blocks(README)
    assert {"python"} <= {block.language for block in found} <= {"python", "console"}
    assert README.count(MARK) == sum(block.language == "console" for block in found)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(README), ids=lambda block: f"line {block.line}")
def test_block(capture, job, tmp_path, block):
    if block.language == "python":
        program = tmp_path / "block.py"
        program.write_text(block.code)
        status, output = job(2, sys.executable, "-m", "mpi4py", program)
        assert status == 0, output
        return
    # The commands run where they may write, beside the examples.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands(block.code):
        status, output = capture("bash", "-c", command, cwd=tmp_path, seconds=120)
        assert status == 0, f"$ {command}\n{output}"
