"""What is said at the end of a benchmark, and when nothing may be said."""

import pytest

pytest.importorskip("rich")

from unit.bench_results import ENVIRONMENT, result

from hpccoll.tools.bench import comparison_result

STEADY = [4.0] * 10


def groups(*ratios, serves="ring", start=8):
    """A size for every ratio of native's time to auto's, steadily measured."""
    return [[result("native", STEADY, nbytes=start << 2 * n),
             result("auto", [4 / ratio] * 10, nbytes=start << 2 * n, serves=serves)]
            for n, ratio in enumerate(ratios)]


def told(*ratios):
    return comparison_result.sentences(groups(*ratios), {**ENVIRONMENT, "hosts": {"a": 2}})[0]


@pytest.mark.parametrize("ratios, words", [
    ((1.6, 1.6), "allreduce: auto was 1.6x as fast as MPICH at all sizes"),
    ((1.0, 1.02, 2.0), "allreduce: auto was 2.0x as fast as MPICH at 128 B, equal up to 32 B"),
    ((0.8,), "allreduce: auto was 0.80x as fast as MPICH at 8 B"),
    ((1, 2, 0.5, 1), "allreduce: auto was 2.0x as fast as MPICH at 32 B, equal at 8 B and at "
                     "512 B, 0.50x as fast at 128 B"),
    ((3.0, 3.1, 2.9, 1.3, 1.3), "allreduce: auto was 3.0x as fast as MPICH up to 128 B, 1.3x as "
                                "fast at 512 B and above"),
    ((1.3, 2.9, 1.4, 3.0), "allreduce: auto was 1.3x to 3.0x as fast as MPICH at all sizes"),
    ((1, 2, 1, 2, 1, 2), "allreduce: auto was 2.0x as fast as MPICH at 3 of 6 sizes, equal at 3 of "
                         "6 sizes")])
def test_a_sentence(ratios, words):
    assert told(*ratios) == words


def left(*ratios):
    return comparison_result.sentences(groups(*ratios, serves="native"),
                                       {**ENVIRONMENT, "hosts": {"a": 2}})


def test_a_call_left_to_the_library_is_no_faster_than_the_library():
    near, far = left(1.1), left(1.5)
    assert near == ["allreduce: auto was equal to MPICH at 8 B, where it used MPICH"]
    assert far[0] == "allreduce: auto was too noisy to compare at 8 B"
    assert "other processes used these cores" in far[1]


def test_a_call_left_to_the_library_is_slower_only_by_what_handing_it_on_costs():
    """That the call took longer is said, not that an algorithm was slower."""
    near = left(0.9, 0.85, 1.0)
    assert near == [
        "allreduce: auto was equal to MPICH at all sizes, where it used MPICH",
        "2 sizes that auto passed to MPICH took up to 1.18x as long: forwarding cost, or noise of "
        "the machine"]
    far, = left(0.5)
    assert far == ("allreduce: auto was 0.50x as fast as MPICH at 8 B, where it used "
                   "MPICH"), "more than luck explains is named"


def test_a_loss_that_the_parts_of_a_run_do_not_agree_on_is_noise_where_the_library_served():
    wild = [8, 8, 30, 30, 8, 8, 30, 30, 12, 12]
    mine = [[result("native", STEADY), result("auto", wild, serves="native")]]
    assert "too noisy to compare" in comparison_result.sentences(mine, ENVIRONMENT)[0]


def test_sizes_left_to_the_library_are_told_from_equal_ones_that_were_served():
    mine = groups(1, 1, 1, 2)
    mine[1] = groups(1, 1, serves="native")[1]
    assert comparison_result.sentences(mine, ENVIRONMENT)[0] == (
        "allreduce: auto was 2.0x as fast as MPICH at 512 B, equal up to 128 B")
    mine[0], mine[2] = (groups(1, 1, 1, serves="native")[n] for n in (0, 2))
    assert comparison_result.sentences(mine, ENVIRONMENT)[0] == (
        "allreduce: auto was 2.0x as fast as MPICH at 512 B, equal up to 128 B, where it used "
        "MPICH")


def test_the_best_candidate_is_meant_where_there_is_no_auto():
    mine = [[result("native", STEADY), result("ring", [2] * 10), result("pat", [3] * 10)]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert said[0] == "allreduce: the best candidate was 2.0x as fast as MPICH at 1 KiB"


def test_parts_that_disagree_are_no_result():
    """Fails where noise is not looked for: the medians alone say 2.5x."""
    wild = [1, 1, 10, 10, 1, 1, 10, 10, 4, 4]
    mine = [[result("native", wild), result("auto", STEADY, serves="ring")]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert said[0].startswith("allreduce: auto was too noisy to compare")
    assert "too noisy to compare at 1 of 1 size" in said[1] and "repeat it" in said[1]


def test_a_ratio_that_no_algorithm_reaches_is_no_result():
    mine = [[result("native", [877] * 10, nbytes=8),
             result("auto", [9.4] * 10, nbytes=8, serves="ring")]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert "too noisy to compare" in said[0] and "93x is not plausible" in said[1]


def test_a_message_that_took_much_longer_than_a_larger_one_is_no_result():
    """Both were late, so the ratio of their times looks like any other."""
    mine = groups(3, 3, 3, 3)
    mine[1] = [r._replace(seconds=tuple(150 * one for one in r.seconds)) for r in mine[1]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert "too noisy to compare at 32 B" in said[0]
    assert "32 B took 150 times as long as a larger size" in said[1]


def test_sure_but_rough():
    """Always faster, but nobody knows how much."""
    wild = [8, 8, 30, 30, 8, 8, 30, 30, 12, 12]
    said = comparison_result.sentences(
        [[result("native", wild), result("auto", STEADY, serves="ring")]], ENVIRONMENT)
    assert "as fast as MPICH" in said[0]
    assert said[1].startswith("the faster one is certain, the ratio is not, at 1 of 1 size")


def test_ranks_that_share_cores():
    crowded = {**ENVIRONMENT, "hosts": {"a": 4}}
    assert comparison_result.sentences(groups(1.6), crowded)[-1].startswith(
        "4 ranks share 2 cores: with one core")
    assert len(comparison_result.sentences(
        groups(1.6), {**ENVIRONMENT, "hosts": {"a": 2, "b": 2}})) == 1


def test_one_rank_has_no_verdict():
    said = comparison_result.sentences(groups(0.67), {**ENVIRONMENT, "ranks": 1})
    assert len(said) == 1 and "one rank sends no messages" in said[0]


def test_nothing_to_compare():
    assert comparison_result.sentences([[result("ring", [1])]], ENVIRONMENT) == []
    assert comparison_result.sentences([], ENVIRONMENT) == []
