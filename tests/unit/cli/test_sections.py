"""Help pages: options in groups, each option once."""

import click
import pytest

pytest.importorskip("rich")

from click.shell_completion import ShellComplete
from click.testing import CliRunner

from hpccoll.algorithms import ALGORITHMS
from hpccoll.cli import COMMANDS, main
from hpccoll.cli.bench import SECTIONS as BENCH
from hpccoll.cli.bench import command as bench
from hpccoll.cli.bench_overlap import command as overlap
from hpccoll.cli.simulate import SECTIONS as SIMULATE
from hpccoll.cli.simulate import command as simulate
from hpccoll.errors import did_you_mean
from hpccoll.ir.methods import METHODS


@pytest.mark.parametrize("commands, sections", [
    ((bench, overlap), BENCH), ((simulate,), SIMULATE)])
def test_every_option_stands_in_one_group(commands, sections):
    """Also where an option is added: what no group names is seen here."""
    options = {each.name for command in commands for each in command.params
               if isinstance(each, click.Option)}
    named = [name for names in sections.values() for name in names]
    assert sorted(named) == sorted(options)


@pytest.mark.parametrize("word, meant", [("explian", "'explain'"), ("Bench", "'bench'")])
def test_a_command_that_is_none_names_the_likely_one(word, meant):
    done = CliRunner().invoke(main, [word, "--whatever"])
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"command: '{word}' is unknown; did you mean {meant}" in done.stderr


@pytest.mark.parametrize("words, meant", [
    (["bench", "comapre", "a", "b"], "compare"), (["bench", "Compare"], "compare"),
    (["bench", "--overlap", "x"], "overlap"), (["bench", "overlp", "bcast"], "overlap")])
def test_a_second_word_that_is_none_names_the_likely_one(words, meant):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"'{words[0]} {words[1]}' is unknown; did you mean '{meant}'" in done.stderr


def test_a_folder_of_traces_that_is_a_misspelt_command():
    done = CliRunner().invoke(main, ["trace", "reprt", "traces"])
    assert done.exit_code == 2
    assert "'reprt' is not a command or a folder; did you mean 'report'" in done.stderr


def test_no_collective_is_taken_for_a_second_word():
    seconds = [name.split()[1] for name in COMMANDS if " " in name]
    assert seconds
    assert not [name for name in (*ALGORITHMS, *METHODS, "all") if did_you_mean(name, seconds)]


def every_command():
    """Names and commands, those of groups too."""
    group = click.Context(main, info_name="hpccoll", terminal_width=80)
    for name in COMMANDS:
        command = main.get_command(group, name)
        yield click.Context(command, info_name=name, parent=group, terminal_width=80)
        for inner, each in getattr(command, "commands", {}).items():
            yield click.Context(each, info_name=f"{name} {inner}", parent=group, terminal_width=80)


def test_help_fits_eighty_columns():
    """Examples, which stand as they are, too."""
    pages = [context.get_help() for context in every_command()]
    assert len(pages) > len(COMMANDS)
    wide = [line for page in pages for line in page.splitlines() if len(line) > 80]
    assert not wide


@pytest.mark.parametrize("words, begun, found", [
    ([], "sim", {"simulate"}), (["simulate"], "--no", {"--nodes", "--no-fold"}),
    (["bench", "compare"], "--to", {"--tolerance"}), (["trace"], "di", {"diagnose"}),
    (["bench", "--format"], "o", {"osu"}),
    (["bench", "overlap", "--work"], "as", {"asleep"}), ([], "bench", {"bench", "bench compare"}),
    (["bnech"], "--", {"--help"})])
def test_a_shell_completes_words(words, begun, found):
    """A mistake before the word is no error yet."""
    made = ShellComplete(main, {}, "hpccoll", "_HPCCOLL_COMPLETE").get_completions(words, begun)
    assert found <= {each.value for each in made}


def test_groups_are_shown():
    text = CliRunner().invoke(main, ["bench", "--help"]).output
    assert [title for title in BENCH if f"{title}:" in text] == list(BENCH)
    assert text.count("--sweeps N") == 1 and "--help" in text
    plain = CliRunner().invoke(main, ["doctor", "--help"]).output
    assert "Options:" in plain
