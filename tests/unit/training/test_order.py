"""Pieces, priorities and credit."""

from hpccoll.training.order import PriorityScheduler


def picked(transfers):
    return [[(piece.name, piece.start, piece.stop) for piece in pieces] for pieces in transfers]


def test_pieces_cover_an_array_once():
    urgency = PriorityScheduler(40, 0, 0)
    assert urgency.add("a", 23, 4, 0, ()) == 3
    assert picked(urgency.pick()) == [[("a", 0, 10)], [("a", 10, 20)], [("a", 20, 23)]]


def test_what_is_needed_first_goes_first_within_the_credit():
    urgency = PriorityScheduler(40, 40, 80)
    urgency.add("late", 40, 4, 9, ())
    assert picked(urgency.pick()) == [[("late", 0, 10)], [("late", 10, 20)]]
    urgency.add("urgent", 5, 4, 0, ())
    assert urgency.pick() == [] and urgency.in_flight == 2
    urgency.complete(1)
    assert picked(urgency.pick()) == [[("urgent", 0, 5)], [("late", 20, 30)]]
    urgency.complete(3)
    assert picked(urgency.pick()) == [[("late", 30, 40)]] and not len(urgency)


def test_credit_may_be_overdrawn_once():
    urgency = PriorityScheduler(0, 0, 10)
    urgency.add("large", 100, 4, 0, ())
    urgency.add("next", 1, 4, 0, ())
    assert picked(urgency.pick()) == [[("large", 0, 100)]]


def test_neighbours_of_one_kind_share_a_transfer():
    urgency = PriorityScheduler(0, 40, 0)
    for name, kind in (("a", "f"), ("b", "f"), ("c", "i"), ("d", "f"), ("e", "f"), ("f", "f")):
        urgency.add(name, 4, 4, 0, (kind,))
    assert [[piece.name for piece in pieces] for pieces in urgency.pick()] == [
        ["a", "b"], ["c"], ["d", "e"], ["f"]]


def test_an_array_of_no_elements_and_one_that_must_stay_whole_are_one_piece():
    urgency = PriorityScheduler(4, 4, 0)
    assert urgency.add("none", 0, 4, 0, ()) == 1
    assert urgency.add("whole", 100, 4, 0, (), whole=True) == 1
    assert picked(urgency.pick()) == [[("none", 0, 0)], [("whole", 0, 100)]]
