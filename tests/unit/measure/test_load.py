"""The share of the cores that other processes use, from texts of /proc/stat."""

import os

import pytest
from mpi4py import MPI

from hpccoll.measure import load

STAT = "cpu  1 1 1 1\ncpu0 {busy} 0 0 500 0 7 7 0 0 0\ncpu1 0 0 0 900 0 0 0 0 0 0\nintr 5\n"


@pytest.fixture
def share(monkeypatch):
    """What is measured in 10 s on two cores, of which others keep some seconds busy."""
    def measured(before, after, own, elapsed=10.0):
        texts, used = iter((before, after)), iter((0.0, own))
        # Looked at when it starts, before it sleeps, and when it ends.
        clock = iter((5.0, 5.0 + elapsed, 5.0 + elapsed))
        monkeypatch.setattr(load, "_read",
                            lambda path: next(texts) if path == load._STAT else "1234-5678")
        monkeypatch.setattr(load, "monotonic", lambda: next(clock))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(os, "sysconf", lambda _: 100)
        monkeypatch.setattr(os, "times", lambda: (next(used), 0.0, 0.0, 0.0, 0.0))
        return load.OtherLoad(MPI.COMM_SELF).share()
    return measured


def stat(seconds):
    return STAT.format(busy=round(100 * seconds))


def test_other_processes_are_what_ranks_did_not_use(share):
    assert share(stat(50), stat(58), own=2.0) == pytest.approx(6 / 20)


def test_ranks_that_fill_the_cores_are_no_others(share):
    assert share(stat(50), stat(60), own=10.0) == 0
    assert share(stat(50), stat(60), own=10.1) == 0  # times are rounded to ticks


@pytest.mark.parametrize("before, after, elapsed", [
    ("", "", 10.0), (stat(0), stat(0), 10.0), (stat(50), stat(50.1), load.SHORTEST / 2)])
def test_an_unknown_share_is_not_reported(share, before, after, elapsed):
    assert load.load_text(share(before, after, 0.0, elapsed)) == ""


def test_only_cores_of_the_ranks_count():
    text = "cpu  9 9 9 9\ncpu0 100 0 0 5\ncpu1 300 0 0 5\ncpu10 9900 0 0 5\n"
    assert load.busy_seconds(text, {1}) == 3 * load.busy_seconds(text, {0}) > 0


def test_stolen_time_counts_and_interrupts_do_not():
    assert load.busy_seconds("cpu0 0 0 0 0 70 80 90 0 0 0\n", {0}) == 0
    assert load.busy_seconds("cpu0 0 0 0 0 0 0 0 100 0 0\n", {0}) > 0
