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


def test_another_thread_is_refused_while_a_call_has_its_own_calls():
    """``Comm`` marks such a thread as the outer one before it leaves the guard for a moment."""
    for make in (new_call_guard, InterpretedCallGuard):
        call_guard, errors = make(), []

        def intrude(call_guard=call_guard, errors=errors):
            with pytest.raises(ConcurrentCallError) as caught:
                call_guard.__enter__()
            errors.append(caught.value)

        with call_guard:
            thread = call_guard.owner_thread
            call_guard.outer_thread, call_guard.owner_thread = thread, 0
            for _ in range(2):
                other = threading.Thread(target=intrude)
                other.start()
                other.join()
                with call_guard:  # this thread's own
                    pass
            call_guard.owner_thread, call_guard.outer_thread = thread, 0
        assert len(errors) == 2


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
