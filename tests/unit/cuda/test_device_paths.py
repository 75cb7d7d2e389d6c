"""Ways of device data: which serves a pair of ranks, why not the others, for many ranks at once."""

from itertools import combinations

import pytest

from hpccoll.cuda.device_paths import (
    WAYS,
    Answer,
    RankReport,
    Share,
    describe_ways,
    paths_between,
    shares,
    way_of,
)

YES = {way.name: Answer(True, f"{way.name} was tried") for way in WAYS}


def told(host, device="gpu", **other):
    return RankReport(host, device,
                      {**YES, **{name: Answer(False, why) for name, why in other.items()}})


@pytest.mark.parametrize(("one", "other", "way"), [
    (told(0), told(0), "nccl"),
    (told(0, nccl="no"), told(0), "ipc"),
    (told(0, nccl="no"), told(4), "mpi"),  # no IPC between nodes
    (told(0), told(4, nccl="no", mpi="no"), "staged"),
    (told(0, "", nccl="no", ipc="no", mpi="no", staged="no"), told(0), "")])
def test_the_first_that_serves_both_is_the_way(one, other, way):
    assert way_of(one, other) == way_of(other, one) == way


def test_of_two_reasons_the_ranks_own_comes_first():
    one, other = told(0, nccl="too old"), told(0, nccl="not there")
    assert paths_between(one, other)["nccl"] == paths_between(other, one)["nccl"] == (False,
                                                                                      "not there")


def test_what_nobody_told_of_is_no_way():
    assert way_of(RankReport(0, "a", {}), told(0)) == ""


JOB = [told(4 * (rank // 4), **({"mpi": "killed"} if rank % 3 else {}))
       for rank in range(12)]


@pytest.mark.parametrize("size", range(2, len(JOB) + 1))
def test_shares_are_those_of_all_pairs(size):
    asked = {}
    for pair in combinations(range(size), 2):
        for name, found in paths_between(*(JOB[rank] for rank in pair)).items():
            asked.setdefault((name, *found), []).append(pair)
    given = shares(JOB[:size])
    assert {share[:3]: share.pairs for share in given} == {
        key: len(pairs) for key, pairs in asked.items()}
    assert all(share.first in asked[share[:3]] for share in given)


def test_lines_say_for_whom_and_why():
    shown = describe_ways(JOB)
    assert shown[0] == "nccl   yes: nccl was tried"
    assert shown[1].startswith("ipc    no: the ranks do not share a node (48 pairs of ranks, ")
    assert shown[2].startswith("ipc    yes: ipc was tried (18 pairs of ranks, ")
    assert shown[-1] == "staged yes: staged was tried"
    assert describe_ways(JOB[:1]) == [f"{name:6} yes: {name} was tried" for name in YES]


def test_a_share_of_many_ranks_takes_no_time_for_each_pair():
    many = [told(8 * (rank // 8)) for rank in range(8000)]
    pairs = 8000 * 7999 // 2
    assert Share("nccl", True, YES["nccl"].why, pairs, (0, 1)) in shares(many)
