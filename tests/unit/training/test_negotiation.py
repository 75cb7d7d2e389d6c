"""Votes: what is ready everywhere, and what ranks disagree on."""

import numpy
import pytest

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.negotiation import (
    JOINED,
    MOST_SLOTS,
    NOTHING_NEW,
    STATUS,
    Offer,
    Registry,
    completed_everywhere,
)


def offer(name, shape=(3,), dtype="float32", op="sum"):
    return Offer(name, (shape,), dtype, op, 1.0, 1.0)


def known(size, names):
    registry = Registry(size)
    assert registry.add_descriptions([[offer(name) for name in names]] * size,
                                     [False] * size) == names
    return registry


def outcome(registries, ready, completed=None, joined=()):
    votes = [registry.bits(map(offer, names), False, rank in joined, (completed or [0] * 9)[rank])
             for rank, (registry, names) in enumerate(zip(registries, ready))]
    return numpy.bitwise_and.reduce(votes)


def test_what_all_ranks_have_is_agreed_in_the_order_of_slots():
    registries = [known(3, list("abcd")) for _ in range(3)]
    vote = outcome(registries, ["dcba", "abd", "bda"])
    assert [registry.ready_names(vote) for registry in registries] == [["a", "b", "d"]] * 3


def test_a_rank_without_data_agrees_to_everything():
    registries = [known(2, list("ab")) for _ in range(2)]
    vote = outcome(registries, ["b", ""], joined={1})
    assert registries[0].ready_names(vote) == ["b"] and not vote[STATUS] & JOINED
    assert outcome(registries, ["", ""], joined={0, 1})[STATUS] & JOINED


def test_more_than_one_word_of_slots():
    names = [f"n{number}" for number in range(200)]
    registry = known(1, names)
    assert registry.ready_names(outcome([registry], [names[::7]])) == names[::7]


def test_something_new_is_seen_by_all():
    registry = known(2, ["a"])
    votes = [registry.bits([], False, False, 0), registry.bits([], True, False, 0)]
    assert not numpy.bitwise_and.reduce(votes)[STATUS] & NOTHING_NEW
    assert votes[0][STATUS] & NOTHING_NEW


@pytest.mark.parametrize("completed", [(0, 3, 2), (5, 5, 5), (64, 70, 64)])
def test_completed_transfers_are_those_of_the_slowest_rank(completed):
    registries = [known(3, ["a"]) for _ in range(3)]
    assert completed_everywhere(outcome(registries, ["", "", ""], completed)) == min(completed)


def test_an_array_is_ready_when_the_last_rank_describes_it():
    registry = Registry(3)
    assert registry.add_descriptions([[offer("a")], [], []], [False] * 3) == []
    assert registry.is_described(offer("a"), 0) and not registry.is_described(offer("a"), 1)
    assert registry.missing_ranks("a") == (1, 2)
    assert registry.add_descriptions([[], [offer("a")], []], [False, False, True]) == ["a"]
    assert registry.has_offer(offer("a")) and registry.missing_ranks("a") == ()


@pytest.mark.parametrize("other, said", [
    (offer("w", (4,)), "shapes ((3,),) and ((4,),)"),
    (offer("w", dtype="float64"), "dtype float32 and float64"),
    (offer("w", op="max"), "op sum and max")])
def test_a_disagreement_names_array_and_ranks(other, said):
    registry = Registry(3)
    with pytest.raises(ExchangeMismatch) as raised:
        registry.add_descriptions([[offer("w")], [other], [offer("w")]], [False] * 3)
    assert raised.value.arrays == ("w",) and raised.value.ranks == (0, 1, 2)
    for text in ("'w'", said, "ranks 0,2 and rank 1"):
        assert text in str(raised.value)


def test_a_new_shape_on_all_ranks_takes_the_place_of_the_old_one():
    registry = known(2, ["a", "b"])
    new = offer("a", (5, 5))
    assert not registry.has_offer(new)
    assert registry.add_descriptions([[new], []], [False] * 2) == []
    assert not registry.has_offer(offer("a"))  # who held it as it was must describe it now
    assert registry.add_descriptions([[], [new]], [False] * 2) == ["a"] and registry.has_offer(new)


def test_a_new_shape_on_one_rank_only_is_a_disagreement():
    registry = known(2, ["a"])
    registry.add_descriptions([[offer("a", (5,))], []], [False] * 2)
    with pytest.raises(ExchangeMismatch):
        registry.add_descriptions([[], [offer("a")]], [False] * 2)


def test_slots_are_bounded_and_the_least_recently_used_goes():
    registry = known(1, [f"n{number}" for number in range(MOST_SLOTS)])
    registry.ready_names(outcome([registry], [["n0"]]))
    registry.add_descriptions([[offer("new")]], [False])
    assert registry.has_offer(offer("n0")) and not registry.has_offer(offer("n1"))
    assert len(registry.slots) == MOST_SLOTS == len(set(registry.slots.values()))


def test_offers_survive_the_way_as_lists():
    import json
    group = Offer("g", ((2, 3), ()), "bfloat16", "average", 0.5, 2.0, 7)
    assert Offer.read(json.loads(json.dumps(group))) == group
