"""What every transport promises about messages: order, tags, memory, and completion."""

import pytest
from contract.ranks import (
    CHECKED_MPI,
    CHECKED_SHARED,
    NO_READV,
    PERSISTENT,
    SHARED,
    SINGLE,
    recv,
    send,
)

from hpccoll.transport.shm.channels import CHANNELS


def value(source, sink, number=0):
    """What a message holds: another number for every message of a test."""
    return 1 + number + 1000 * (source + 100 * sink)


# -- order -------------------------------------------------------------------------------------
def test_messages_of_a_pair_arrive_in_order(ranks, payload):
    """More messages in one batch than a channel has descriptors."""
    def rule(me, most=7):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        sent = [me.memory(payload, value(me.rank, right, i)) for i in range(most)]
        received = [me.memory(payload) for _ in range(most)]
        for _ in range(2):
            yield from me.finish(me.start(*(send(right, array) for array in sent),
                                          *(recv(left, array) for array in received)))
            for i, array in enumerate(received):
                assert (array == value(left, me.rank, i)).all()
                array[:] = -1

    ranks.run(rule)


@pytest.mark.parametrize("turn", [1, -1])
def test_order_holds_for_messages_of_all_kinds_and_batches(ranks, turn):
    """Batches that are open at once get their messages in the order in which they started."""
    kinds = ("large", "small", "registered", "empty", "cell", "large", "small", "registered")

    def rule(me):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        received, batches = [], []
        for i, kind in enumerate(kinds):
            received.append(me.memory(kind))
            batches.append(me.start(send(right, me.memory(kind, value(me.rank, right, i))),
                                    recv(left, received[-1])))
        yield from me.finish(*batches[::turn])
        for i, array in enumerate(received):
            assert (array == value(left, me.rank, i)).all()

    ranks.run(rule)


@pytest.mark.parametrize("tags", [(0, 1), (1, 0), (0, CHANNELS), (CHANNELS + 40, 1)])
def test_tags_do_not_mix(ranks, payload, tags):
    """A receive gets a message of its tag, even when one of another tag was sent before."""
    def rule(me):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        sent = [me.start(send(right, me.memory(payload, value(me.rank, right, tag))), tag=tag)
                for tag in tags]
        for tag in reversed(tags):
            received = me.memory(payload)
            yield from me.finish(me.start(recv(left, received), tag=tag))
            assert (received == value(left, me.rank, tag)).all()
        yield from me.finish(*sent)

    ranks.run(rule)


# -- completion --------------------------------------------------------------------------------
def test_everyone_sends_to_everyone_again_and_again(ranks, payload):
    """A batch can be started again when it is done, with other data in the same memory."""
    def rule(me):
        sent = {peer: me.memory(payload) for peer in me.others}
        received = {peer: me.memory(payload) for peer in me.others}
        batch = me.batch(*(send(peer, sent[peer]) for peer in reversed(me.others)),
                         *(recv(peer, received[peer]) for peer in me.others), repeated=True)
        for turn in range(5):
            for peer in me.others:
                sent[peer][:], received[peer][:] = value(me.rank, peer, turn), -1
            batch.start()
            while not batch.test():
                yield
            for peer in me.others:
                assert (received[peer] == value(peer, me.rank, turn)).all()
        batch.free()

    ranks.run(rule)


def test_everyone_sends_everything_to_everyone(ranks):
    """Messages of all sizes and kinds in one batch, to all others at once."""
    kinds = ("registered", "small", "large", "empty", "cell")

    def rule(me):
        for turn in range(3):
            me.forget()
            received = {(peer, kind): me.memory(kind) for peer in me.others for kind in kinds}
            yield from me.finish(me.start(
                *(send(peer, me.memory(kind, value(me.rank, peer, turn + i)))
                  for i, kind in enumerate(kinds) for peer in me.others),
                *(recv(*key[:1], array) for key, array in received.items())))
            for (peer, kind), array in received.items():
                assert (array == value(peer, me.rank, turn + kinds.index(kind))).all()

    ranks.run(rule)


def test_testing_never_blocks_and_nothing_completes_too_early(ranks, payload):
    """Rank 0 tests in vain until it lets the others, one by one, send."""
    def rule(me):
        empty = me.memory("empty")
        if me.rank:
            yield from me.finish(me.start(recv(0, empty), tag=1))
            yield from me.finish(me.start(send(0, me.memory(payload, value(me.rank, 0)))))
            return
        received = {peer: me.memory(payload) for peer in me.others}
        batch = me.start(*(recv(peer, received[peer]) for peer in me.others))
        for peer in me.others:
            for _ in range(100):
                assert not batch.test()
                yield
            yield from me.finish(me.start(send(peer, empty), tag=1))
        yield from me.finish(batch)
        for peer, array in received.items():
            assert (array == value(peer, 0)).all()

    ranks.run(rule)


def test_a_sender_without_a_receiver_goes_on_testing(ranks, payload):
    def rule(me):
        empty = me.memory("empty")
        if me.rank == 0:
            batches = [me.start(send(peer, me.memory(payload, value(0, peer))))
                       for peer in me.others]
            for _ in range(100):
                for batch in batches:
                    batch.test()
                yield
            yield from me.finish(me.start(*(send(peer, empty) for peer in me.others), tag=1))
            yield from me.finish(*batches)
            return
        yield from me.finish(me.start(recv(0, empty), tag=1))
        received = me.memory(payload)
        yield from me.finish(me.start(recv(0, received)))
        assert (received == value(0, me.rank)).all()

    ranks.run(rule)


def test_what_is_done_stays_done(ranks, payload):
    def rule(me):
        received = [me.memory(payload) for _ in me.others]
        batch = me.start(*(send(peer, me.memory(payload, me.rank)) for peer in me.others),
                         *(recv(peer, array) for peer, array in zip(me.others, received)))
        while not batch.test():
            yield
        for _ in range(3):
            assert batch.test()
        batch.free()
        assert [array.tolist() for array in received] == [[peer] * len(array) for peer, array
                                                       in zip(me.others, received)]

    ranks.run(rule)


def test_prepared_batches_need_not_be_started(ranks, payload):
    def rule(me):
        for repeated in (True, False):
            me.batch(*(recv(peer, me.memory(payload)) for peer in me.others),
                     repeated=repeated).free()
        yield

    ranks.run(rule)


# -- memory ------------------------------------------------------------------------------------
def test_a_sender_may_overwrite_its_memory_when_the_batch_is_done(ranks, payload):
    """Receivers look late; they must find what was there when the batch was started."""
    def rule(me, turns=4):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        sent, received = me.memory(payload), me.memory(payload)
        sends = me.batch(send(right, sent), repeated=True)
        for turn in range(turns):
            sent[:], received[:] = value(me.rank, right, turn), -1
            sends.start()
            done = sends.test()
            for _ in range(20 * (me.rank % 3)):
                if done:
                    sent[:] = -2
                yield
                done = done or sends.test()
            receive = me.start(recv(left, received))
            arrived = False
            while not (done and arrived):
                arrived = arrived or receive.test()
                done = done or sends.test()
                if done:
                    sent[:] = -2
                yield
            receive.free()
            assert (received == value(left, me.rank, turn)).all()
        sends.free()

    ranks.run(rule)


@pytest.mark.parametrize("payload", ["small", "large", "registered"])
def test_only_the_received_elements_are_written(ranks, payload):
    """Parts of arrays are sent and received, of bytes that no larger type could name."""
    def rule(me):
        whole = me.memory(payload, 0).view("u1")
        pieces = [(1, 5), (5, 6), (7, whole.size // 2), (whole.size // 2 + 3, whole.size)]
        source = me.memory(payload, 0).view("u1")
        source[:] = me.rank + 1
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        yield from me.finish(me.start(*(send(right, source[a:b]) for a, b in pieces),
                                      *(recv(left, whole[a:b]) for a, b in pieces)))
        for start, stop in pieces:
            assert (whole[start:stop] == left + 1).all()
            whole[start:stop] = 0
        assert not whole.any()
        assert (source == me.rank + 1).all()

    ranks.run(rule)


@pytest.mark.parametrize("payload", ["large"])
def test_failures_are_checked_after_a_large_message_has_arrived(ranks, payload):
    """A sender that has failed may have changed memory that was read much later."""
    if ranks.flavour not in (SINGLE, PERSISTENT, SHARED, NO_READV, CHECKED_MPI, CHECKED_SHARED):
        pytest.skip("has no callback for failures")

    def rule(me):
        right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        received, arrived = me.memory(payload), []
        wanted = value(left, me.rank)
        endpoint = getattr(me.endpoint, "inner", me.endpoint)  # below the checksums
        endpoint.on_alarm = lambda: arrived.append((received == wanted).all())
        yield from me.finish(me.start(send(right, me.memory(payload, value(me.rank, right))),
                                      recv(left, received)))
        endpoint.on_alarm = None
        assert arrived and arrived[-1]

    ranks.run(rule)
