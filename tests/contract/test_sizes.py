"""A message of another size than expected is an error that says so, on the receiver.

Long messages that MPI carries are left out: where the receive is shorter, Open MPI 5.0 reports
the truncation after it has written past the end of the buffer.
"""

import numpy
import pytest
from contract.ranks import CHECKED_MPI, PERSISTENT, SHARED, recv, send

from hpccoll.errors import MessageSizeError

#: Elements sent and expected.
SIZES = [(3, 40), (40, 3), (0, 3), (3, 0)]


def mismatch(me, sent, expected):
    """Rank 0 sends to rank 1, which notices; rank 0 may or may not, but it does not hang."""
    array = numpy.zeros(sent if me.rank == 0 else expected)
    if me.rank == 0:
        batch = me.start(send(1, array))
        for _ in range(200):
            try:
                batch.test()
            except MessageSizeError:
                return
            yield
    elif me.rank == 1:
        batch = me.start(recv(0, array))
        with pytest.raises(MessageSizeError):
            while not batch.test():
                yield


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_are_checked(fresh, sizes):
    if fresh.flavour in (PERSISTENT, CHECKED_MPI):
        pytest.skip("persistent batches do not look at sizes: that would double their cost")
    fresh.run(mismatch, *sizes)


def test_long_messages_are_not_read_when_their_size_is_wrong(fresh):
    if fresh.flavour != SHARED:
        pytest.skip("only a channel knows the size before the message moves")
    fresh.run(mismatch, 4000, 3)
