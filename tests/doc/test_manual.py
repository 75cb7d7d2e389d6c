"""Manual pages: one for every command, with every option, which groff reads without a warning."""

import importlib.util
import re
import shutil
import subprocess

import pytest
from launch import ROOT

pytest.importorskip("click")
pytest.importorskip("rich")

import click

from hpccoll.cli import COMMANDS, main


@pytest.fixture(scope="module")
def manual():
    spec = importlib.util.spec_from_file_location("manual", ROOT / "docs" / "manual.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(manual):
    return dict(manual.pages())


def test_every_command_has_a_page(pages):
    assert set(pages) == {"hpccoll", *("hpccoll-" + name.replace(" ", "-") for name in COMMANDS)}
    for name in COMMANDS:
        assert f"hpccoll-{name.replace(' ', '-')}".replace("-", "\\-") in pages["hpccoll"]


def test_the_page_of_the_command_line_has_every_command():
    page = (ROOT / "docs" / "api" / "command-line.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` | {line} |" in page for name, (_, line) in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_there(pages, name):
    group = click.Context(main, info_name="hpccoll")
    command = main.get_command(group, name)
    text = pages["hpccoll-" + name.replace(" ", "-")].replace("\\-", "-")
    assert "-h, --help" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert all(option in text for option in parameter.opts)


def test_groff_has_no_warning(manual, tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    paths = manual.write(tmp_path)
    assert {path.parent for path in paths} == {tmp_path / "man1"}
    for path in paths:
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", path], capture_output=True,
                              text=True, check=True)
        assert done.stderr == ""
        shown = re.sub("\x1b\\[[0-9;]*m|.\b", "", done.stdout)
        assert "NAME" in shown and "OPTIONS" in shown and "\\-" not in shown


@pytest.mark.parametrize("text, made", [(".dot", "\\&.dot"), ("a-b\\n", "a\\-b\\en"),
                                        ("'q'", "\\&'q'")])
def test_text_stays_what_it_is(manual, text, made):
    assert manual.roff(text) == made
