"""Many cases in one test."""

import pytest

from support.folded import folded


def test_every_case_runs_and_those_that_fail_are_named(tmp_path):
    seen = []

    @folded("number, word", [(1, "a"), pytest.param(2, "b", id="second"), (3, "c")])
    def check(number, tmp_path, word):
        seen.append((number, word, tmp_path))
        assert number != 2
        if word == "c":
            with pytest.raises(KeyError):
                pass

    with pytest.raises(pytest.fail.Exception, match=r"^2 of 3 cases:\nsecond: Ass.*\n.*3, 'c'\): "):
        check(tmp_path=tmp_path)
    assert seen == [(1, "a", tmp_path), (2, "b", tmp_path), (3, "c", tmp_path)]


def test_no_cases_fail_and_skipped_ones_skip():
    with pytest.raises(pytest.fail.Exception, match="cases"):
        folded("one", [])(lambda one: None)()
    with pytest.raises(pytest.skip.Exception, match="because"):
        folded("one", [1, 2])(lambda one: pytest.skip("because"))()
    folded("one", [1, 2])(lambda one: one == 2 or pytest.skip("because"))()
