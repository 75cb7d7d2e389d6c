"""A message of another size than expected is an error that says so, on the receiver."""

import pytest
from contract.ranks import PERSISTENT, recv, send
from hpccoll.errors import MessageSizeError


@pytest.mark.parametrize("kinds", [("small", "slot"), ("slot", "small"), ("empty", "small"),
                                   ("small", "empty"), ("registered", "slot")])
def test_sizes_are_checked(fresh, kinds):
    if fresh.flavour == PERSISTENT:
        pytest.skip("persistent batches do not look at sizes: that would double their cost")

    def rule(me):
        if me.rank > 1:
            return
        if me.rank == 0:
            batch = me.start(send(1, me.memory(kinds[0])))
            for _ in range(200):
                try:
                    if batch.test():
                        break
                except MessageSizeError:
                    break
                yield
            return
        batch = me.start(recv(0, me.memory(kinds[1])))
        with pytest.raises(MessageSizeError):
            while not batch.test():
                yield

    fresh.run(rule)
