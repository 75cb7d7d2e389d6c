"""One call at a time: in machine code and without."""

import threading
import time

import pytest

from hpccoll.errors import ConcurrentCallError
from hpccoll.guard.call_guard import InterpretedCallGuard, new_call_guard, reject_concurrent_call


@pytest.mark.parametrize("make", [new_call_guard, InterpretedCallGuard])
def test_one_goes_at_a_time(make):
    call_guard = make()
    with call_guard:
        assert call_guard.owner_thread == threading.get_ident()
        with pytest.raises(ConcurrentCallError, match="test_call_guard"):
            call_guard.__enter__()
        assert call_guard.owner_thread  # who was refused has not left for the other
    assert not call_guard.owner_thread
    with pytest.raises(ZeroDivisionError), call_guard:
        raise ZeroDivisionError
    with call_guard:
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
        reject_concurrent_call(thread.ident)
    leave.append(1)
    thread.join()
    assert __file__ in caught.value.site and caught.value.other
