"""Objects as messages: there and back, inside a frame and behind it, errors included."""

import numpy
import pytest

from hpccoll.comm.objects.wire import (
    FRAME,
    LONG,
    RemoteError,
    copy_of,
    decode,
    encode,
    is_plain,
    memory_for,
    same_type_and_shape,
    type_and_shape,
)
from hpccoll.errors import HpccollError


def sent(obj, rank=0, here=1):
    """What arrives of an object, and whether data followed its frame."""
    frame = bytearray(FRAME)
    data, _ = encode(frame, obj, rank)
    arriving = memory_for(frame) if frame[0] == LONG else None
    assert (arriving is None) == (data is None)
    if data is not None:
        memoryview(arriving).cast("B")[:] = memoryview(data).cast("B")
    return decode(frame, arriving, here), data is not None


@pytest.mark.parametrize("obj, follows", [
    (1.5, False), (-3, False), (2**63 - 1, False), (-2**63, False), (2**63, False), (True, False),
    (None, False), ("x" * 20, False), ("x" * 500, True), ([1, (2, 3)], False), (1j, False),
    (numpy.float32(2.5), False), (numpy.arange(3.0), False), (numpy.arange(40.0), True),
    (numpy.zeros((0, 4)), False), (numpy.zeros((3, 4), "i2"), False), (numpy.zeros(3, ">f8"), True),
    (numpy.arange(8.0)[::2], True), (numpy.array(3.0), True)], ids=str)
def test_objects_arrive_as_they_are(obj, follows):
    arrived, behind = sent(obj)
    assert type(arrived) is type(obj) and behind is follows
    if isinstance(obj, numpy.ndarray):
        assert arrived.dtype == obj.dtype and arrived.shape == obj.shape
        assert (arrived == obj).all()
    else:
        assert arrived == obj


def test_an_error_travels_like_a_result():
    arrived, _ = sent(RemoteError(KeyError("lost"), 3))
    assert type(arrived) is RemoteError and arrived.rank == 3
    with pytest.raises(KeyError, match="lost") as caught:
        arrived.throw(1)
    assert "raised on rank 3" in str(caught.value.__cause__)
    again, _ = sent(RemoteError(KeyError("lost"), 3))
    with pytest.raises(KeyError) as caught:
        again.throw(3)
    assert caught.value.__cause__ is None


def test_what_cannot_be_pickled_is_an_error_that_travels():
    frame = bytearray(FRAME)
    _, error = encode(frame, lambda: None, 2)
    assert type(error) is RemoteError and error.rank == 2
    arrived, _ = sent(lambda: None, rank=2)
    assert type(arrived) is RemoteError and arrived.rank == 2
    local = type("Local", (Exception,), {})("not importable")
    arrived, _ = sent(RemoteError(local, 0))
    assert type(arrived.error) is HpccollError and "Local: not importable" in str(arrived.error)


def test_what_cannot_be_unpickled_is_an_error_of_this_rank():
    frame = bytearray(FRAME)
    encode(frame, (1, 2), 0)
    frame[1:4] = b"xyz"
    arrived = decode(frame, None, 5)
    assert type(arrived) is RemoteError and arrived.rank == 5


def test_arrays_of_one_type_and_shape():
    frames = []
    for array in (numpy.zeros(40), numpy.ones(40), numpy.zeros(40, "i8"), numpy.zeros((2, 20))):
        frames.append(bytearray(FRAME))
        encode(frames[-1], array, 0)
    assert [same_type_and_shape(frames[0], frame) for frame in frames] == [True, True, False, False]
    assert len({type_and_shape(frame) for frame in frames}) == 3


def test_copies():
    text, array, nested = "x", numpy.arange(3.0), [[1]]
    assert copy_of(text, 0) is text
    assert copy_of(array, 0) is not array and (copy_of(array, 0) == array).all()
    assert copy_of(nested, 0) == nested and copy_of(nested, 0)[0] is not nested[0]
    assert type(copy_of(lambda: None, 4)) is RemoteError


def test_only_native_contiguous_arrays_of_numbers_are_plain():
    assert is_plain(numpy.zeros(3)) and is_plain(numpy.zeros((0, 2)))
    for other in (numpy.zeros(4)[::2], numpy.zeros(3, ">f8"), numpy.zeros(3, "O"), numpy.array(1.0),
                  numpy.zeros((2, 3)).T, numpy.zeros(2, "M8[s]")):
        assert not is_plain(other)
