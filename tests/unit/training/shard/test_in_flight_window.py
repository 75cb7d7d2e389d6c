"""Generators of requests are resumed in their order, whichever request is done first."""

from hpccoll.training.shard.in_flight_window import MOST_SPARE, InFlightWindow, VectorPool


class Request:
    def __init__(self):
        self.done = self.waited = False
        self.tests = 0

    def Test(self):
        self.tests += 1
        return self.done

    def Wait(self):
        self.waited = self.done = True


def flight(log, name, requests):
    for number, request in enumerate(requests):
        log.append(f"{name}{number}")
        yield request
    log.append(f"{name} over")


def test_a_later_one_is_not_resumed_before_an_earlier_one_is_over():
    log, first, second = [], [Request(), Request()], [Request(), Request()]
    flights = InFlightWindow()
    flights.launch(flight(log, "a", first), lambda: log.append("a landed"))
    flights.launch(flight(log, "b", second), lambda: log.append("b landed"))
    second[0].done = True
    flights.poll()
    assert log == ["a0", "b0"]
    # MPI moves a transfer on when somebody looks at it.
    assert (first[0].tests, second[0].tests) == (1, 1)
    first[0].done = True
    flights.poll()
    assert log == ["a0", "b0", "a1"]
    first[1].done = True
    flights.poll()
    assert log == ["a0", "b0", "a1", "a over", "a landed", "b1"] and len(flights) == 1
    flights.wait()
    assert log[-2:] == ["b over", "b landed"] and len(flights) == 0 and second[1].waited


def test_waiting_for_some_leaves_the_others():
    requests = [Request() for _ in range(3)]
    flights = InFlightWindow()
    for request in requests:
        flights.launch(iter([request]))
    flights.wait(most=1)
    assert [request.waited for request in requests] == [True, True, False]


def test_what_waits_for_nothing_lands_in_its_turn():
    log, request, flights = [], Request(), InFlightWindow()
    flights.launch(iter(()), lambda: log.append("a"))
    flights.launch(iter([request]), lambda: log.append("b"))
    flights.launch(iter(()), lambda: log.append("c"))
    assert log == ["a"]
    flights.wait()
    assert log == ["a", "b", "c"]


def test_memory_is_used_again_where_it_fits():
    buffers = VectorPool()
    vector = buffers.get(100, "f4")
    place = vector.ctypes.data
    buffers.put(vector)
    assert buffers.get(30, "f4").ctypes.data != place  # much too large
    again = buffers.get(40, "f8")
    assert again.ctypes.data == place and again.shape == (40,)
    for _ in range(5):
        buffers.put(buffers.get(10, "f4").copy())
    assert len(buffers._spare) <= MOST_SPARE
    buffers.clear()
    assert not buffers._spare


def test_memory_that_others_may_look_at_is_not_used_again():
    buffers = VectorPool(0)
    vector = buffers.get(100, "f4")
    vector[:] = 7
    buffers.put(vector)
    buffers.get(100, "f4")[:] = 8
    assert not buffers._spare and (vector == 7).all()
