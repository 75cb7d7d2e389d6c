"""The line: one operation after the other, results and errors where they belong."""

import pytest

from support.threads import run_ranks

pytest.importorskip("torch")
line = pytest.importorskip("hpccoll.torch.operation_queue")


class Request:
    """Complete after so many looks."""

    def __init__(self, looks=0):
        self.looks = looks

    def Test(self):
        self.looks -= 1
        return self.looks < 0


@pytest.fixture
def running():
    each = line.OperationLine(None)
    yield each
    each.close()


def operation(log, name, looks=3, result=None):
    for turn in range(2):
        log.append((name, turn))
        yield Request(looks)
    return result


def test_one_after_the_other(running):
    log = []
    first, second = (running.start(operation(log, name, result=name)) for name in "ab")
    assert second.wait() == "b" and first.done() and first.wait() == "a"
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert second() == "b"


def test_looking_moves_it_on(running):
    pending = running.start(operation([], "a"))
    for _ in range(10000):
        if pending.done():
            break
    assert pending.done()


def test_an_error_ends_one_operation(running):
    def failing():
        yield Request()
        raise ValueError("of this one")

    first, second = running.start(failing()), running.start(operation([], "b", result=2))
    assert second.wait() == 2
    for _ in range(2):
        with pytest.raises(ValueError, match="of this one"):
            first.wait()


def test_a_request_that_fails_ends_the_line():
    class Broken:
        def Test(self):
            raise OSError("lost")

    def failing():
        yield Broken()

    broken = line.OperationLine(None)
    first, second = broken.start(failing()), broken.start(operation([], "b"))
    for pending in (first, second):
        with pytest.raises(OSError, match="lost"):
            pending.wait()
    broken.close()


def test_several_as_one_and_results_once(running):
    calls = []
    pending = line.then(line.join_results([running.start(operation([], name, result=name))
                                       for name in "abc"]), lambda found: calls.append(found) or 7)
    assert pending.wait() == 7 and pending.wait() == 7
    assert calls == [["a", "b", "c"]]
    assert line.join_results([]).wait() == [] and line.join_results([]).done()


def test_names():
    def rank(comm):
        each = line.OperationLine(comm)
        names = [each.name("sum", None), each.name("sum", "w"), each.name("sum", None),
                 each.name("max", None)]
        each.close()
        return names

    for names in run_ranks(2, rank):
        assert names == ["sum.noname.1", "sum.w", "sum.noname.2", "max.noname.1"]
