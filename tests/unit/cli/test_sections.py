"""Help pages: options in groups, each option once."""

import click
import pytest

pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.cli.bench import SECTIONS as BENCH
from hpccoll.cli.bench import command as bench
from hpccoll.cli.simulate import SECTIONS as SIMULATE
from hpccoll.cli.simulate import command as simulate


@pytest.mark.parametrize("command, sections", [(bench, BENCH), (simulate, SIMULATE)])
def test_every_option_stands_in_one_group(command, sections):
    """Also where an option is added: what no group names is seen here."""
    options = [each.name for each in command.params if isinstance(each, click.Option)]
    named = [name for names in sections.values() for name in names]
    assert sorted(named) == sorted(options)


@pytest.mark.parametrize("word, meant", [("explian", "'explain'"), ("Bench", "'bench'")])
def test_a_command_that_is_none_names_the_likely_one(word, meant):
    done = CliRunner().invoke(main, [word, "--whatever"])
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"command: '{word}' is unknown; did you mean {meant}" in done.stderr


def test_groups_are_shown():
    text = CliRunner().invoke(main, ["bench", "--help"]).output
    assert [title for title in BENCH if f"{title}:" in text] == list(BENCH)
    assert text.count("--sweeps N") == 1 and "--help" in text
    plain = CliRunner().invoke(main, ["doctor", "--help"]).output
    assert "Options:" in plain
