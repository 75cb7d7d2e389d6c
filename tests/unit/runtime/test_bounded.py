"""Dictionaries that forget."""

import pytest

from hpccoll.runtime.bounded import BoundedDict


def test_the_oldest_entries_go_first_and_are_discarded():
    gone = []
    kept = BoundedDict(5, gone.append, len)
    assert kept.keep("a", "xx") == "xx" and kept.keep("b", "yyy") == "yyy"
    assert len(kept) == 2 and kept.weight == 5 and not gone
    kept.keep("c", "z")
    assert gone == ["xx"] and "a" not in kept and kept.get("b") == "yyy" and kept.weight == 4


def test_the_newest_entry_is_kept_however_heavy():
    kept = BoundedDict(1, weigh=len)
    kept.keep("a", "x")
    kept.keep("b", "yyyy")
    assert kept.get("b") == "yyyy" and kept.get("a") is None and len(kept) == 1


def test_an_entry_takes_the_place_of_one_with_its_key():
    gone = []
    kept = BoundedDict(9, gone.append)
    kept.keep("a", 1)
    kept.keep("a", 2)
    assert gone == [1] and kept.get("a") == 2 and kept.weight == 1


def test_what_is_dropped_is_not_discarded():
    gone = []
    kept = BoundedDict(9, gone.append)
    kept.keep("a", 1)
    assert kept.drop("a") == 1 and not gone and kept.weight == 0
    with pytest.raises(KeyError):
        kept.drop("a")
    kept.keep("b", 2)
    kept.clear()
    assert gone == [2] and not len(kept)
