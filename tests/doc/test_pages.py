"""What the pages say runs.

Every console block has ``<!-- run -->`` or ``<!-- not run: reason -->`` directly above it. Of the
blocks to run, the lines that begin with ``$`` are the commands, and what the page prints below
them is not compared. The README's Python runs too, on two ranks, so it may use MPI; in other pages
what is marked does. ``<!-- file: NAME -->`` gives Python a name that commands below it may use.

The blocks of a page run in order, in one folder, so that later ones find what earlier ones wrote.
"""

import re
import sys

import pytest
from doc.pages import (
    FILE,
    PAGES,
    Block,
    blocks,
    commands,
    complaints,
    is_run,
    missing_frameworks,
    need_frameworks,
)
from launch import ROOT

from support.folded import folded

#: Pages whose commands start ranks of each kind: a sample for a second MPI library.
LAUNCHING = ("README.md", "docs/machine.md", "docs/reliability.md")
#: Pages of frameworks and predictions: the longest, of parts that have many tests of their own.
LENGTHY = ("docs/training/shard.md", "docs/training/horovod.md",
           "docs/training/jax-and-keras.md", "docs/training/predict.md")


def name_of(page):
    return str(page.relative_to(ROOT))


def to_run(page):
    return [block for block in blocks(page.read_text(encoding="utf-8"))
            if is_run(block, name_of(page))]


def test_blocks_and_commands_are_found():
    text = ("a\n<!-- run -->\n```console\n$ one \\\n  more\noutput\n$ two\n```\n"
            "```python\nx = 1\n```\n<!-- not run: no reason -->\n```console\n$ not this\n```\n"
            "<!-- table: t -->\n\n<!-- file: a.py -->\n```python\ny = 1\n```\n"
            "```text\nnor this\n```\n")
    found = blocks(text)
    assert found == [Block(4, "console", "$ one \\\n  more\noutput\n$ two\n", "run"),
                     Block(10, "python", "x = 1\n", ""),
                     Block(14, "console", "$ not this\n", "not run: no reason"),
                     Block(20, "python", "y = 1\n", "file: a.py"),
                     Block(23, "text", "nor this\n", "")]
    assert commands(found[0].code) == ["one \\\n  more", "two"]
    assert [is_run(block, "README.md") for block in found] == [True, True, False, True, False]
    assert [is_run(block, "docs/x.md") for block in found] == [True, False, False, True, False]


@pytest.mark.parametrize("text, complaint", [
    ("```console\n$ a\n```\n", "directly above"),
    ("<!-- run -->\n\n```console\n$ a\n```\n", "directly above"),
    ("<!-- not run: -->\n```console\n$ a\n```\n", "directly above"),
    ("<!-- not run: because -->\n```console\n$ a\n```\n", "directly above"),
    ("<!-- run -->\n```console\na\n```\n", "no command"),
    ("<!-- run -->\n```console\n# a\n```\n", "root"),
    ("<!-- run -->\n```bash\na\n```\n", "console block"),
    ("```\nmpiexec -n 2 a\n```\n", "looks like commands"),
    ("<!-- run -->\n```json\n{}\n```\n", "cannot be run")])
def test_what_is_wrong_with_a_page_is_found(text, complaint):
    assert [line for line in complaints("page", text) if complaint in line]


@folded("page", PAGES)
def test_every_command_is_run_or_has_a_reason(page):
    text = page.read_text(encoding="utf-8")
    assert not list(complaints(name_of(page), text))
    # A mark that is not directly above a block would do nothing.
    marks = re.findall(r"^ *<!-- (run|not run|file)\b", text, re.MULTILINE)
    assert len(marks) == sum(bool(block.mark) for block in blocks(text))


def test_the_readme_has_both_kinds():
    assert {"python", "console"} <= {block.language for block in to_run(ROOT / "README.md")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [
    pytest.param(page, marks=() if name_of(page) in LAUNCHING else pytest.mark.long
                 if name_of(page) in LENGTHY else pytest.mark.once)
    for page in PAGES if to_run(page)], ids=name_of)
def test_page(capture, job, tmp_path, page):
    for path in re.findall(r"\bexamples/\w+\.py\b", "".join(block.code for block in to_run(page))):
        need_frameworks((ROOT / path).read_text(encoding="utf-8"))
    left_out = []  # files that need a framework, of the README
    if name_of(page) != "README.md":
        need_frameworks("".join(block.code for block in to_run(page)))
    # The commands run where they may write, beside the examples and benchmarks.
    for folder in "examples", "benchmarks":
        (tmp_path / folder).symlink_to(ROOT / folder)
    for block in to_run(page):
        where = f"{name_of(page)}:{block.line}"
        if block.language == "python":
            named = block.mark.startswith(FILE)
            if missing_frameworks(block.code):
                left_out.append(block.mark.removeprefix(FILE))
                continue
            program = tmp_path / (block.mark.removeprefix(FILE) if named else "block.py")
            program.write_text(block.code, encoding="utf-8")
            status, output = job(2, sys.executable, "-m", "mpi4py", program, cwd=tmp_path)
            assert status == 0, f"{where}\n{output}"
            continue
        for command in commands(block.code):
            if any(name in command for name in left_out):
                continue
            status, output = capture("bash", "-c", command, cwd=tmp_path, seconds=120)
            assert status == 0, f"{where}\n$ {command}\n{output}"
