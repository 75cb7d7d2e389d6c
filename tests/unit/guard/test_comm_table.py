"""The communicators that a process lists for ``hpccoll status``."""

import os

import pytest

from hpccoll.guard.comm_table import KEPT, MOST, TABLE_BYTES, CommEntry, CommTable


@pytest.fixture
def table():
    return CommTable(memoryview(bytearray(TABLE_BYTES)))


def descriptor():
    return os.open("/dev/null", os.O_RDONLY)


def test_a_communicator_is_listed_until_it_is_removed(table):
    first, second = descriptor(), descriptor()
    keys = [table.add(first, 0, 2, 0, "world"), table.add(second, 3, 4, 1, "g" * 200)]
    inode = os.stat("/dev/null").st_ino
    assert table.entries() == [CommEntry(first, inode, 0, 2, 0, "world"),
                               CommEntry(second, inode, 3, 4, 1, "g" * 88)]
    table.remove(keys[0])
    assert [entry.file for entry in table.entries()] == [second]
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(first)
    again = descriptor()  # of the same number
    keys.append(table.add(again, 0, 2, 0, ""))
    table.remove(keys[0])
    table.remove(table.add(-1, 0, 2, 0, ""))
    assert len(table.entries()) == 2
    for key in keys:
        table.remove(key)
    assert not table.entries()


def test_a_full_table_keeps_the_first_and_the_last(table):
    files = [descriptor() for _ in range(MOST + 5)]
    keys = [table.add(file, rank, 99, 0, "") for rank, file in enumerate(files)]
    ranks = {entry.rank for entry in table.entries()}
    assert ranks == {*range(KEPT), *range(KEPT + 5, MOST + 5)}
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(files[KEPT])
    for key in keys:
        table.remove(key)
    assert not table.entries()


def test_a_descriptor_that_the_program_uses_again_stays_open(table, tmp_path):
    file, other = descriptor(), os.open(tmp_path / "own", os.O_CREAT | os.O_RDWR)
    key = table.add(file, 0, 1, 0, "")
    os.dup2(other, file)  # as after os.closerange
    table.remove(key)
    assert os.fstat(file).st_ino == os.fstat(other).st_ino
    os.close(file)
    os.close(other)
