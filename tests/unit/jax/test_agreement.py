"""What ranks are told that bring different trees."""

import pytest

from hpccoll.errors import ExchangeMismatch
from support.threads import run_ranks

pytest.importorskip("jax")
agreement = pytest.importorskip("hpccoll.jax.agreement")

A, B, C = "['a']: float32[3]", "['b']: float32[4]", "['b']: int32[4]"


@pytest.mark.parametrize("leaves, text, ranks", [
    ([(A, B), (A, C), (A, B)], "leaf 1: .*float32.4. on ranks 0, 2; .*int32.4. on rank 1;",
     (1,)),
    ([(A,), (A, B)], "leaf 1: nothing on rank 0;", (1,)),
    ([(), (A,), (A,)], "leaf 0: nothing on rank 0;", (0,)),
    ([(A, B), (B, A)], r"leaf 0: \['a'\].* on rank 0; \['b'\].* on rank 1;", (1,))])
def test_the_first_leaf_that_differs_is_named(leaves, text, ranks):
    error = agreement.disagreement(leaves)
    assert isinstance(error, ExchangeMismatch) and error.ranks == ranks
    with pytest.raises(ValueError, match=text):
        raise error


@pytest.mark.parametrize("size", [2, 3, 7])
def test_all_ranks_raise_the_same(size):
    def rank(comm):
        agreement.Agreement((A, B)).check(comm)
        with pytest.raises(ExchangeMismatch) as caught:
            agreement.Agreement((A, C if comm.rank == size - 1 else B)).check(comm)
        return str(caught.value)

    assert len(set(run_ranks(size, rank))) == 1


def test_one_rank_agrees_with_itself():
    class Alone:
        size = 1

    agreement.Agreement((A,)).check(Alone())


def test_fingerprints():
    assert agreement.Agreement((A, B)).fingerprint == agreement.Agreement((A, B)).fingerprint
    others = {agreement.Agreement(leaves).fingerprint for leaves in ((), (A,), (A, B), (B, A))}
    assert len(others) == 4 and all(0 <= number < 2 ** 56 for number in others)
