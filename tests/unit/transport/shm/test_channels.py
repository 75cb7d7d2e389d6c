"""What a node needs for its channels: memory of other processes, memory barriers, cells."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.errors import SharedMemoryError
from hpccoll.transport.shm import channels


def test_own_memory_is_not_taken_for_a_peers():
    """Containers may give two ranks the same process number, and the system the same addresses."""
    node = channels.SharedNode.__new__(channels.SharedNode)
    node.pids, node.local = [os.getpid()] * 2, {1: 1}
    node.comm = SimpleNamespace(allgather=lambda told: [told, told])
    if node._probe() is None:
        pytest.skip("this system lets nobody read")
    node.comm.allgather = lambda told: [
        told, told if isinstance(told, bool) else (told[0], bytes(64))]
    assert node._probe() is None


def test_memory_of_a_peer_is_read_to_the_end():
    """Linux copies at most 2 GiB at once; here a stand-in copies less."""
    node = channels.SharedNode.__new__(channels.SharedNode)
    node.pids, node.local, copied = [10, 11], {1: 1}, []

    def readv(pid, mine, mine_count, theirs, their_count, flags):
        assert (pid, mine_count, their_count, flags) == (11, 1, 1, 0)
        assert mine.length == theirs.length
        copied.append(min(mine.length, most))
        ctypes.memmove(mine.base, theirs.base, copied[-1])
        return copied[-1]

    node.readv = readv
    source = numpy.random.default_rng(0).integers(256, size=10_000, dtype="u1")
    address = source.__array_interface__["data"][0]
    for most in (1, 7, 4096, 10_000):
        into = numpy.zeros(10_002, "u1")
        copied.clear()
        node.read_private(1, address, into[1:-1])
        assert (into[1:-1] == source).all() and not into[[0, -1]].any()
        assert len(copied) == -(-10_000 // most)


@pytest.mark.parametrize("end", ["", "MPI.Finalize()"])
def test_the_window_of_memory_barriers_is_freed_before_mpi_ends(end):
    """What is registered first is done last at the exit."""
    done = subprocess.run([sys.executable, "-c", f"""
import atexit
from mpi4py import MPI
atexit.register(lambda: print(len(channels._windows), MPI.Is_finalized()))
from hpccoll.errors import SharedMemoryError
from hpccoll.transport.shm import channels
channels.platform.machine = lambda: "aarch64"
for _ in range(2):  # as for two communicators
    channels._fence()()
print(len(channels._windows))
{end}
"""], cwd=Path(channels.__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0 and "WARN" not in done.stderr, done.stderr
    assert done.stdout.split() == ["1", "0", str(bool(end))]


@pytest.mark.parametrize("ranks, most, expected", [
    (1, 256 << 10, 256 << 10), (2, 256 << 10, 256 << 10), (9, 256 << 10, 192 << 10),
    (9, 64 << 10, 64 << 10), (100_000, 256 << 10, channels.LEAST_CELL_BYTES)])
def test_cells_are_smaller_where_there_are_many_ranks(ranks, most, expected):
    assert channels._cell_bytes(ranks, most) == expected


def test_two_threads_that_make_a_channel_at_once_get_the_same():
    """Two objects would count its messages apart, and both announce a first one."""
    node = channels.SharedNode.__new__(channels.SharedNode)
    node.channel, node.rank, node.local, node.pids = channels.Channel, 0, {1: 1}, [1, 2]
    node.tags, node.cell_bytes, node.early_bytes = {0: 0}, 4096, 4 * 2 * channels.LINE
    node.small_start, node.cells_start = node.early_bytes, 1 << 16
    node.channels, node.fence, node.readv, node.table = {}, None, None, channels.NO_REGIONS
    part = numpy.zeros(1 << 20, "u1")
    meanwhile = []

    def populate(rank, offset, nbytes):
        if not meanwhile:  # another thread has its turn while the system finds the pages
            meanwhile.append(None)
            meanwhile[0] = node.send_channel(1, 0)
        return True

    node.shared = SimpleNamespace(parts=[part, part], populate=populate)
    assert node.send_channel(1, 0) is meanwhile[0] is node.send_channel(1, 0)


class Grown:
    """Memory of two ranks whose ranges exist once they were asked for."""

    def __init__(self, room=1 << 20):
        self.parts, self.room, self.asked = [numpy.zeros(1 << 20, "u1")] * 2, room, []

    def populate(self, rank, offset, nbytes):
        self.asked.append((rank, nbytes))
        self.room -= nbytes
        return self.room >= 0


def made_node(room):
    node = channels.SharedNode.__new__(channels.SharedNode)
    node.channel, node.rank, node.local, node.pids = channels.Channel, 0, {1: 1}, [1, 2]
    node.tags, node.cell_bytes, node.early_bytes = {0: 0, 1: 1}, 4096, 1 << 12
    node.small_start, node.cells_start = node.early_bytes, 1 << 16
    node.channels, node.fence, node.shared = {}, None, Grown(room)
    node.readv, node.table = None, channels.NO_REGIONS
    return node


SMALL = channels.PLACES * channels.SMALL_CELL_BYTES


def test_cells_grow_with_messages():
    node = made_node(1 << 20)
    sender, receiver = node.send_channel(1, 0), node.recv_channel(1, 0)
    assert node.shared.asked == [(0, SMALL)]
    for nbytes in (0, 8, channels.SMALL_CELL_BYTES):
        assert all(cell.nbytes == channels.SMALL_CELL_BYTES for cell in sender.cells_for(nbytes))
    assert node.shared.asked == [(0, SMALL)]
    for nbytes in (channels.SMALL_CELL_BYTES + 1, 2048, 1500):
        assert [cell.nbytes for cell in sender.cells_for(nbytes)] == [4096] * channels.PLACES
    assert node.shared.asked[1:] == [(0, 2048)] * channels.PLACES
    assert sender.cells_for(4096) and sender.ready == 4096 and not sender.cells_for(4097)
    assert receiver.cells_for(4096) and receiver.cells_for(0)
    assert len(node.shared.asked) == 1 + 2 * channels.PLACES  # the receiver populates nothing


def test_a_full_file_system_leaves_short_messages_their_cells():
    sender = made_node(SMALL + 5000).send_channel(1, 0)
    assert sender.cells_for(8) and not sender.cells_for(2000) and sender.cells_for(8)


def test_a_full_file_system_leaves_no_cells():
    sender = made_node(100).send_channel(1, 0)
    assert not sender.cells_for(8) and not sender.cells_for(2000)


def test_no_room_for_the_words_of_a_persistent_call():
    node = made_node(0)
    node.early_bytes = 0
    with pytest.raises(SharedMemoryError, match="/dev/shm"):
        node.send_channel(1, 1)
