"""The communicators that a process lists for ``hpccoll status``."""

import os

import pytest

from hpccoll.guard.comm_table import MOST, TABLE_BYTES, CommEntry, CommTable


@pytest.fixture
def table():
    return CommTable(memoryview(bytearray(TABLE_BYTES)))


def descriptor():
    return os.open("/dev/null", os.O_RDONLY)


def test_a_communicator_is_listed_until_it_is_removed(table):
    first, second = descriptor(), descriptor()
    assert table.add(first, 0, 2, 0, "world") == first
    assert table.add(second, 3, 4, 1, "g" * 200) == second
    inode = os.stat("/dev/null").st_ino
    assert table.entries() == [CommEntry(first, inode, 0, 2, 0, "world"),
                               CommEntry(second, inode, 3, 4, 1, "g" * 88)]
    table.remove(first)
    assert [entry.file for entry in table.entries()] == [second]
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(first)
    table.remove(first)  # not the one that has its number now
    table.remove(-1)
    assert len(table.entries()) == 1
    table.remove(second)


def test_a_full_table_keeps_no_more_descriptors(table):
    kept = [table.add(descriptor(), 0, 2, 0, "") for _ in range(MOST)]
    last = descriptor()
    assert table.add(last, 0, 2, 0, "") == -1 and table.add(-1, 0, 2, 0, "") == -1
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(last)
    table.remove(kept[5])
    again = descriptor()
    assert table.add(again, 1, 2, 0, "") == again and len(table.entries()) == MOST
    for file in {*kept, again}:
        table.remove(file)
