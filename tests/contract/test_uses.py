"""Messages that are used where they lie: what ``Posting.uses`` promises."""

import numpy
import pytest
from contract.ranks import (
    BUILT,
    DIRECT,
    EAGER,
    LOOPBACK,
    PERSISTENT,
    SINGLE,
    TWO_NODES,
    WITH_CHECKSUMS,
    recv,
    send,
)


def read_in_place(me):
    return me.endpoint.direct(me.others, 0)


def test_who_reads_messages_in_place(ranks):
    for me in ranks.here:
        expected = ranks.flavour not in (LOOPBACK, EAGER, SINGLE, PERSISTENT, TWO_NODES,
                                         *WITH_CHECKSUMS, *BUILT)
        assert me.endpoint.direct(me.others, 0) is expected
        # Channels of shared memory exist for the first tags only.
        assert me.endpoint.direct(me.others, 99) is (ranks.flavour == DIRECT)


def using(seen, total, peer):
    """A use that notes who it was for, and makes a sum that depends on the order."""
    def function(left, right, into):
        seen.append(peer)
        numpy.subtract(left, right, into)
    return function, (None, total, total), 0


def combined(size, order):
    """What the uses above make of 0 and the ranks, in this order."""
    total = 0
    for rank in order:
        total = rank - total
    return total


def test_messages_are_used_in_the_order_of_the_postings(ranks, payload):
    def rule(me):
        if not read_in_place(me):
            return
        for order in (me.others, me.others[::-1]):
            received = [me.memory(payload) for _ in order]
            total, seen = me.memory(payload, 0), []
            yield from me.finish(me.start(
                *(send(peer, me.memory(payload, me.rank)) for peer in me.others),
                *(recv(peer, array, (*using(seen, total, peer), 0, total.size))
                  for peer, array in zip(order, received))))
            assert seen == order
            assert (total == combined(me.size, order)).all()
            me.forget()

    ranks.run(rule)


def test_parts_of_a_message_are_used_apart(ranks, payload):
    """Several uses of one message, on either side of the operator."""
    def rule(me):
        if not read_in_place(me):
            return
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        sent, mine = me.memory(payload), me.memory(payload, 100)
        sent[:] = numpy.arange(sent.size) + me.rank
        copied, summed, half = me.memory(payload), me.memory(payload), sent.size // 2
        yield from me.finish(me.start(
            send(right, sent),
            recv(left, me.memory(payload),
                 (numpy.copyto, (copied[half:], None), 1, half, sent.size),
                 (numpy.subtract, (mine[:half], None, summed[:half]), 1, 0, half),
                 (numpy.subtract, (None, mine[half:], summed[half:]), 0, half, sent.size))))
        expected = numpy.arange(sent.size) + left
        assert (copied[half:] == expected[half:]).all() and (copied[:half] == -1).all()
        assert (summed[:half] == 100 - expected[:half]).all()
        assert (summed[half:] == expected[half:] - 100).all()

    ranks.run(rule)


@pytest.mark.parametrize("following", [("cell", "small", "registered", "large"),
                                       ("registered",) * 5, ("large", "large", "large"), ()])
def test_a_later_sender_is_not_kept_waiting_by_an_earlier_one(ranks, payload, following):
    """The first message of a batch is sent only after later ones have been taken.

    Without that, ranks wait in a circle. What the last sender sends next, into descriptors that
    are free again, must not be mistaken for what has been put aside.
    """
    def rule(me):
        if me.size < 3:
            return
        last, empty = me.size - 1, me.memory("empty")
        if me.rank == 0:
            order = me.others
            received = [me.memory(payload) for _ in order]
            total, seen = me.memory(payload, 0), []
            direct = read_in_place(me)
            batch = me.start(*(recv(peer, array, *([(*using(seen, total, peer), 0, total.size)]
                                                   if direct else []))
                               for peer, array in zip(order, received)))
            later = [me.memory(kind) for kind in following]
            yield from me.finish(batch)
            yield from me.finish(*(me.start(recv(last, array)) for array in later))
            if direct:
                assert seen == order and (total == combined(me.size, order)).all()
            else:
                assert all((array == peer).all() for peer, array in zip(order, received))
            for i, array in enumerate(later):
                assert (array == 1000 + i).all()
            return
        if me.rank == 1:
            yield from me.finish(me.start(recv(last, empty), tag=1))
        sends = me.start(send(0, me.memory(payload, me.rank)))
        if me.rank < last:
            yield from me.finish(sends)
            return
        yield from me.finish(sends)
        more = [me.start(send(0, me.memory(kind, 1000 + i))) for i, kind in enumerate(following)]
        for _ in range(200):
            for batch in more:
                batch.test()
            yield
        yield from me.finish(me.start(send(1, empty), tag=1))
        yield from me.finish(*more)

    ranks.run(rule)


def test_two_messages_of_one_rank_are_taken_in_order(ranks):
    """A short message must not overtake a long one of the same rank, though it is there first."""
    def rule(me):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        kinds = ("large", "registered", "large", "small", "registered")
        for turn in range(10):
            me.forget()
            received = [me.memory(kind) for kind in kinds]
            yield from me.finish(me.start(
                *(recv(left, array) for array in received),
                *(send(right, me.memory(kind, turn + i)) for i, kind in enumerate(kinds))))
            for i, array in enumerate(received):
                assert (array == turn + i).all()

    ranks.run(rule)


@pytest.mark.parametrize("kind", ["empty", "small", "cell", "large"])
def test_messages_are_a_plan_of_the_compiled_executor(ranks, kind):
    if ranks.flavour not in BUILT:
        pytest.skip("another executor moves its messages")

    def rule(me):
        before = me.endpoint.compiled_plans
        yield from me.finish(me.start(*(send(peer, me.memory(kind)) for peer in me.others),
                                      *(recv(peer, me.memory(kind)) for peer in me.others)))
        assert me.endpoint.compiled_plans == before + 1

    ranks.run(rule)
