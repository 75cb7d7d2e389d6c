"""Sizes, times, counts and ranges, read and written."""

import pytest

from hpccoll import units
from hpccoll.errors import ArgumentError


@pytest.mark.parametrize("text, nbytes", [
    ("0", 0), ("8", 8), (" 64K ", 64 << 10), ("1k", 1 << 10), ("2MiB", 2 << 20), ("2mb", 2 << 20),
    ("3G", 3 << 30), ("1T", 1 << 40), ("1024T", 1 << 50)])
def test_a_size(text, nbytes):
    assert units.size("--nbytes", text) == nbytes


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5K", "1Q", "8:16", "8,16", "1025T", "K", "1 K"])
def test_what_is_no_size(text):
    with pytest.raises(ArgumentError, match="^--nbytes: ") as caught:
        units.size("--nbytes", text)
    assert caught.value.argument == "--nbytes"


def test_a_size_within_limits():
    assert units.size("-m", "1", least=1, most=1) == 1
    for text, problem in (("0", "less than 1 B"), ("2", "more than 1 B")):
        with pytest.raises(ArgumentError, match=problem):
            units.size("-m", text, least=1, most=1)


def test_lists_of_sizes_and_of_nodes():
    assert units.sizes("--nbytes", "1k, 2MiB,3", 2) == [1024, 2 << 20, 3]
    assert units.sizes("--nbytes", "0") == [0]
    assert units.sizes("--nbytes", "8,8:64") == [8, 32, 64]
    assert units.counts("--nodes", "3:3") == [3]
    assert units.counts("--nodes", "1:5") == [1, 2, 4, 5]
    with pytest.raises(ArgumentError):
        units.sizes("--nbytes", "0:8")
    with pytest.raises(ArgumentError, match="smaller"):
        units.sizes("--nbytes", "16:8")
    for text in ("0", "two", "10000001"):
        with pytest.raises(ArgumentError, match="nodes"):
            units.counts("--nodes", text)


@pytest.mark.parametrize("text, expected", [
    ("4", [4]), ("16", [8, 16]), ("32:", [32, 64]), (":16", [8, 16]), ("1:2", [1, 2]),
    (":", [8, 16, 32, 64])])
def test_one_range_of_sizes(text, expected):
    assert units.size_range("-m", text, 2, smallest=8, largest=64) == expected


def test_ranges_of_numbers():
    assert units.numbers("--ranks", "8,1-3,2") == [1, 2, 3, 8]
    for text in ("", "a", "1-", "-1", "3-1", "0-2"):
        with pytest.raises(ArgumentError):
            units.numbers("--ranks", text)


@pytest.mark.parametrize("nbytes, text, short", [
    (0, "0 B", "0"), (1023, "1023 B", "1023"), (1 << 10, "1 KiB", "1K"), (1536, "1.5 KiB", "1.5K"),
    (16 << 20, "16 MiB", "16M"), (1 << 30, "1 GiB", "1G"), (3 << 40, "3 TiB", "3T"),
    (1 << 50, "1 PiB", "1P")])
def test_sizes_as_text(nbytes, text, short):
    assert units.size_text(nbytes) == text
    assert units.size_text(nbytes, unit="") == text.removesuffix("B").rstrip()
    assert units.short_size_text(nbytes) == short


@pytest.mark.parametrize("option, nbytes", [("8", 8), ("64K", 64 << 10), ("3M", 3 << 20)])
def test_what_is_written_short_can_be_read(option, nbytes):
    assert units.short_size_text(nbytes) == option
    assert units.size("-m", option) == nbytes


@pytest.mark.parametrize("seconds, text", [
    (0, "0 s"), (5e-10, "0.5 ns"), (1.25e-6, "1.25 us"), (421.04e-6, "421 us"), (0.01, "10 ms"),
    (1, "1 s"), (62914.561, "62910 s"), (999.96e-6, "1 ms"), (1.2e-14, "0.000012 ns")])
def test_times(seconds, text):
    assert units.time_text(seconds) == text


@pytest.mark.parametrize("rate, text", [
    (0, "-"), (69_700, "69.7 kB/s"), (999.9e6, "1 GB/s"), (2.5e15, "2500 TB/s"), (0.5, "0.5 B/s")])
def test_rates(rate, text):
    assert units.rate_text(rate) == text


def test_counts_and_ranks():
    assert units.count_text(1, "node") == "1 node" and units.count_text(0, "node") == "0 nodes"
    assert units.ranges_text([]) == "" and units.ranges_text([3, 4, 4, 1]) == "3-4,4,1"
    assert units.ranks_text(range(5000)) == "ranks 0-4999"
    assert units.ranks_text([7]) == "rank 7" and units.ranks_text({2, 0, 1}) == "ranks 0-2"
