"""Pace and turns of candidates."""

import pytest

from hpccoll.measure import timing


def batches(settings, pace):
    done, spent, found = 0, 0.0, []
    while batch := timing.next_batch(settings, done, spent):
        found.append(batch)
        done += batch
        spent += batch * pace(done)
    return found, spent


def test_pace_keeps_the_budget():
    settings = timing.Settings(seconds=0.5)
    found, spent = batches(settings, lambda done: 1e-5)
    assert sum(found) == timing.MOST and len(found) >= timing.REPETITIONS
    found, spent = batches(settings, lambda done: 1e-3)
    assert 0.4 < spent < 0.6
    found, spent = batches(settings, lambda done: 1.0)
    assert sum(found) == timing.LEAST
    # The first iteration was lucky, the others are slow.
    found, spent = batches(settings, lambda done: 1e-6 if done < 2 else 0.05)
    assert sum(found) <= 2 * timing.LEAST


@pytest.mark.parametrize("iterations", [1, 7, 10, 1234])
def test_pace_counts_iterations(iterations):
    found, _ = batches(timing.Settings(iterations=iterations), lambda done: 100.0)
    assert sum(found) == iterations
    assert len(found) <= timing.REPETITIONS


def test_candidates_take_turns_in_changing_order():
    names = list("abcd")
    orders = [timing.in_turn(names, repetition) for repetition in range(40)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [timing.in_turn(names, repetition) for repetition in range(40)]
    after = {(one, two) for order in orders for one, two in zip(order, order[1:])}
    assert len(after) == 12 and {order[0] for order in orders} == set(names)
