"""Candidates: how they are written, and what each can serve."""

import numpy
import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError
from hpccoll.measure import candidates
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import make
from hpccoll.tune.cost_model import plausible_algorithms

FLOAT = numpy.dtype("f4")


def test_candidates_are_read():
    found = candidates.parse("native, auto,knomial:k=8 ")
    assert [c.label for c in found] == ["native", "auto", "knomial:k=8"]
    assert candidates.parse("") == []


@pytest.mark.parametrize("text", ["nonsense", "ring,ring", "knomial:k", "knomial:k=x", "native:k=2",
                                  "knomial:k=-1"])
def test_bad_candidates(text):
    with pytest.raises(ArgumentError, match="--algorithm"):
        candidates.parse(text)


def test_candidates_are_in_the_table():
    for base, table in ALGORITHMS.items():
        for nbytes in (8, candidates.LARGE):
            named = candidates.expand([], base, 4, nbytes, False)
            assert [c.name for c in named[:2]] == ["native", "auto"] and len(named) > 2
            assert all(c.name in table for c in named[2:])


def test_candidates_that_cannot_serve_are_refused():
    case = make("allreduce", 1, 64, FLOAT)
    wanted = candidates.parse("all,chain,native")
    chosen, refused = candidates.select(wanted, case, CaseBuffers(case, 0), False)
    assert "ring" in [c.name for c in chosen]
    assert set(refused) == {"census", "chain"}
    exact = make("allreduce", 1, 64, numpy.dtype("i4"))
    assert "census" not in candidates.select(wanted, exact, CaseBuffers(exact, 0), False)[1]


def test_plausible_is_what_tune_would_measure():
    for nbytes in (64, 1 << 20):
        case = make("allreduce", 64, nbytes, FLOAT)
        chosen, refused = candidates.select(candidates.parse("auto,plausible,native"), case,
                                            CaseBuffers(case, 0), False)
        names = [c.name for c in chosen]
        assert names[0] == "auto" and names[-1] == "native"
        assert set(names[1:-1]) | set(refused) == set(plausible_algorithms("allreduce", 64, nbytes))
    assert "plausible" in candidates.WORDS
    with pytest.raises(ArgumentError, match="'plausible:k=2'"):
        candidates.parse("plausible:k=2")
