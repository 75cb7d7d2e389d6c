"""Values of options: lists, sizes, parameters."""

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import click

from hpccoll.cli import bench
from hpccoll.cli.options import OneOf, Together, buffer_sizes, check_together, names, parameters
from hpccoll.errors import ArgumentError


@pytest.mark.parametrize("text, step, expected", [
    ("8:128", 4, [8, 32, 128]), ("8:100", 4, [8, 32, 100]), ("1K:2K", 2, [1024, 2048]),
    ("64", 2, [8, 16, 32, 64]), ("4", 2, [4]), ("8M:", 2, [8 << 20, 16 << 20]),
    ("1g:1G", 2, [1 << 30])])
def test_sizes(text, step, expected):
    assert buffer_sizes(text, step) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "9:8", "8:4:2", "-8", "8:1T", "1.5K"])
def test_bad_sizes(text):
    with pytest.raises(ArgumentError, match="-m"):
        buffer_sizes(text, 4)


def test_lists_and_ranges():
    assert names(["ring, bruck", "pat,"]) == ["ring", "bruck", "pat"]
    assert parameters(["k=4", "n=2"]) == {"k": 4, "n": 2}
    for texts in (["k"], ["k="], ["=3"], ["k=-1"], ["k=x"], ["k=1", "k=2"], ["size=2"]):
        with pytest.raises(ArgumentError):
            parameters(texts)


RULES = (Together("--one", ("--two", "--three"), remedy="choose one of them"),
         Together("--three", needs="--two"))


@pytest.mark.parametrize("words, problem", [
    ("", ""), ("--one", ""), ("--two 1", ""), ("--two 1 --three", ""), ("--one --two 0", ""),
    ("--one -t 1", "--one: does not go with --two; choose one of them"),
    ("--one --two 1 --three", "--one: does not go with --two, --three; choose one of them"),
    ("--three", "--three: means nothing without --two")])
def test_options_that_do_not_go_together(words, problem):
    """An option that has its default's value is as good as not there."""
    @click.command()
    @click.option("--one", is_flag=True)
    @click.option("-t", "--two", type=int, default=0)
    @click.option("--three", is_flag=True)
    def command(**given):
        pass

    context = command.make_context("command", words.split())
    if problem:
        with pytest.raises(ArgumentError) as caught:
            check_together(context, RULES)
        assert str(caught.value) == problem
    else:
        check_together(context, RULES)


def test_rules_speak_of_options_that_there_are():
    known = {spelling for option in bench.command.params for spelling in option.opts}
    for rule in bench.TOGETHER:
        assert {rule.option, *rule.excludes, *([rule.needs] if rule.needs else [])} <= known


def test_a_word_that_is_nearly_right_is_named():
    kinds = OneOf(["blocking", "nonblocking"])
    assert kinds.convert("blocking", None, None) == "blocking"
    with pytest.raises(click.UsageError, match="'blokcing' is unknown; did you mean 'blocking'"):
        kinds.convert("blokcing", None, None)
