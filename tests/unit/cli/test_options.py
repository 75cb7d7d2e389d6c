"""Values of options: lists, sizes, parameters."""

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import click

from hpccoll.cli.options import OneOf, buffer_sizes, names, parameters
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


def test_a_word_that_is_nearly_right_is_named():
    kinds = OneOf(["blocking", "nonblocking"])
    assert kinds.convert("blocking", None, None) == "blocking"
    with pytest.raises(click.UsageError, match="'blokcing'.*'blocking'"):
        kinds.convert("blokcing", None, None)
