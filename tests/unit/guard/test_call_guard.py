"""One call at a time: in machine code and without."""

import threading
import time

import pytest

from hpccoll.errors import ConcurrentCallError
from hpccoll.guard.call_guard import InterpretedEntrance, new_entrance, refuse


@pytest.mark.parametrize("make", [new_entrance, InterpretedEntrance])
def test_one_goes_at_a_time(make):
    entrance = make()
    with entrance:
        assert entrance.holder == threading.get_ident()
        with pytest.raises(ConcurrentCallError, match="test_call_guard"):
            entrance.__enter__()
        assert entrance.holder  # who was refused has not left for the other
    assert not entrance.holder
    with pytest.raises(ZeroDivisionError), entrance:
        raise ZeroDivisionError
    with entrance:
        pass


def test_both_sites_are_named():
    there, leave = [], []

    def stay():
        while not leave:
            there.append(1)
            time.sleep(0)

    thread = threading.Thread(target=stay, name="the other")
    thread.start()
    while not there:
        time.sleep(0)
    with pytest.raises(ConcurrentCallError, match="'the other'.*Dup") as caught:
        refuse(thread.ident)
    leave.append(1)
    thread.join()
    assert __file__ in caught.value.site and caught.value.other
