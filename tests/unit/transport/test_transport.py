"""What transports share: postings, and copies as calls."""

import numpy
import pytest

from hpccoll.transport import MessageSpec, copy_action
from support.gpu.device import installed


@pytest.mark.parametrize("dtype", ["f8", "f2", "i1", "V3", [("value", "f4"), ("index", "i4")]])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_copies_can_be_made_again_and_again(dtype, count):
    source, into = numpy.zeros(count, dtype), numpy.empty(count, dtype)
    function, operands = copy_action(into, source)
    for turn in range(3):
        source.view("u1")[:] = turn + 1
        function(*operands)
        assert (into.view("u1") == turn + 1).all()


def test_copies_of_other_sizes_are_refused():
    function, operands = copy_action(numpy.empty(3), numpy.empty(4))
    with pytest.raises(ValueError):
        function(*operands)


def test_device_memory_is_not_copied_by_the_host():
    with installed(True) as cupy, pytest.raises(TypeError):
        copy_action(numpy.empty(3), cupy.empty(3))


def test_a_message_stays_in_its_array_unless_uses_say_otherwise():
    assert MessageSpec(True, 1, numpy.empty(3)).uses == ()
