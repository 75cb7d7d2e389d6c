"""Errors of data: whom they name, and which built-in exceptions catch them."""

from hpccoll.errors import HpccollError, NonFiniteError
from hpccoll.errors.checks import CorruptMessage, NonFiniteInput, UnequalError


def test_a_corrupt_message_names_its_edge():
    error = CorruptMessage("was corrupt", 2, 0, 7, 3)
    assert (error.sender, error.receiver, error.number, error.round) == (2, 0, 7, 3)
    assert "7 from rank 2 to rank 0 in round 3 was corrupt" in str(error)
    assert isinstance(error, HpccollError) and isinstance(error, RuntimeError)
    assert "rank 0 was lost" in str(CorruptMessage("was lost", 2, 0, 7))


def test_the_census_names_ranks():
    error = NonFiniteInput("allreduce", "a.py:3", {1: "NaN in element 0"})
    assert error.ranks == (1,) and error.collective == "allreduce"
    assert "allreduce at a.py:3" in str(error) and "rank 1: NaN in element 0" in str(error)
    assert isinstance(error, NonFiniteError) and isinstance(error, FloatingPointError)
    many = NonFiniteInput("reduce", "", {rank: "NaN" for rank in range(20)})
    assert len(many.ranks) == 20 and "rank 7: NaN; and 12 more" in str(many)
    assert " at " not in str(many).partition("NaN")[0]


def test_the_minority_differs():
    error = UnequalError("bits in x", [
        ((0, 3), "digest a"), ((1,), "digest b"), ((2,), "digest c")])
    assert error.ranks == (1, 2) and error.groups == ((0, 3), (1,), (2,))
    assert "bits in x: rank 1: digest b; rank 2: digest c; ranks 0, 3: digest a" in str(error)
    assert isinstance(error, ValueError)


def test_two_halves_blame_nobody():
    error = UnequalError("bits in x", [((1, 3), "digest b"), ((0, 2), "digest a")])
    assert error.ranks == () and error.groups == ((0, 2), (1, 3))
    assert "ranks 0, 2: digest a; ranks 1, 3: digest b" in str(error)
