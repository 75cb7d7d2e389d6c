"""Blocks of different sizes by NCCL, on its double: grouped sends and receives, any of them empty.

Blocks lie in reverse order, with gaps that must stay as they are. Every input is made on another
stream, and the caller's stream destroys input and result after the call.
"""

import random
from itertools import accumulate, product

import numpy
import pytest
from mpi4py import MPI

from hpccoll.calls import resolve
from hpccoll.cuda import nccl_group
from hpccoll.cuda.stream_ordered import as_resident, queue_of
from support.gpu.nccl_world import NcclRanks, dtype_of, world
from support.gpu.streams import CudaError

METHODS = ("allgatherv", "gatherv", "scatterv", "alltoallv", "alltoallw")
ROOTED = ("gatherv", "scatterv")
GAP = 77


class Layout:
    """Places of blocks: reverse order, with a gap before and between them."""

    def __init__(self, counts):
        self.counts = counts
        ends = [0, *accumulate(count + 1 for count in reversed(counts))]
        self.displs, self.total = [end + 1 for end in ends[:-1]][::-1], ends[-1] + 1

    def array(self, blocks, dtype):
        """The whole memory; blocks that are ``None`` stay gaps."""
        whole = numpy.full(self.total, GAP, dtype)
        for displ, block in zip(self.displs, blocks, strict=True):
            if block is not None:
                whole[displ:displ + len(block)] = block
        return whole


class Call:
    """One rank's arguments: host arrays, the specifications around them, and what is wanted."""

    def __init__(self, method, rank, sizes, root, dtype, in_place):
        size, self.method, self.dtype, self.root = len(sizes), method, dtype_of(dtype), root
        everyone = range(size)
        if method.startswith("alltoall"):
            sent = [self.block(rank, to, sizes[rank][to]) for to in everyone]
            got = [self.block(frm, rank, sizes[frm][rank]) for frm in everyone]
            self.source, self.out = self.vector(sent), self.vector(got)
            if in_place:
                self.source, self.out = None, (self.out[0], self.vector(sent)[2], self.out[2])
            return
        counts = [sizes[0][one] for one in everyone]
        blocks = [self.block(one, one, counts[one]) for one in everyone]
        mine, sides = self.alone(blocks[rank]), [self.vector(blocks), self.vector(blocks)]
        if method == "scatterv":
            self.source = sides[0] if rank == root else None
            self.out = sides[0] if in_place and rank == root else mine
            self.in_place_sink = in_place and rank == root
        else:
            self.source = mine
            self.out = sides[0] if method == "allgatherv" or rank == root else None
            if in_place and self.out is not None:
                start = [block if one == rank else None for one, block in enumerate(blocks)]
                self.source, self.out = None, (self.out[0], sides[0][0].array(start, self.dtype),
                                               self.out[2])

    in_place_sink = False

    def block(self, frm, to, count):
        return (numpy.arange(count) + 10 * frm + 3 * to).astype(self.dtype)

    def vector(self, blocks):
        """Layout, memory before, and memory after."""
        layout = Layout([len(block) for block in blocks])
        return layout, layout.array([None] * len(blocks), self.dtype), layout.array(
            blocks, self.dtype)

    def alone(self, block):
        return None, numpy.full(len(block), GAP, self.dtype), block

    def spec(self, layout, array):
        if layout is None:
            return array
        if self.method == "alltoallw":
            code = (MPI.SHORT if self.dtype.name == "bfloat16" else
                    MPI.Datatype.fromcode(self.dtype.char))
            each = self.dtype.itemsize
            kinds = [(code, 1) if n % 2 else (MPI.BYTE, each) for n in range(len(layout.counts))]
            return [array, ([count * scale for count, (_, scale) in zip(layout.counts, kinds,
                                                                        strict=True)],
                            [displ * each for displ in layout.displs]),
                    [kind for kind, _ in kinds]]
        return [array, (layout.counts, layout.displs)]


def make(ranks, method, sizes, dtype="f4", in_place=False, kind="non_blocking"):
    """Make a call on all ranks; return the ranks with a wrong result."""
    cupy, size, root, places = ranks.cupy, ranks.size, ranks.size // 2, []
    for group in ranks.groups:
        call = Call(method, group.rank, sizes, root, dtype, in_place)
        with group.device:
            stream = (cupy.cuda.get_current_stream() if kind == "null" else
                      cupy.cuda.Stream(non_blocking=True))
            waits, other = stream.synchronized, cupy.cuda.Stream(non_blocking=True)
            with other:
                arrays = {}
                for name in ("source", "out"):
                    side = getattr(call, name)
                    if side is not None and not (name == "out" and call.in_place_sink):
                        values = side[2] if name == "source" else side[1]
                        arrays[name] = cupy.empty(values.size, values.dtype)
                        arrays[name][...] = cupy.asarray(values)
                stream.wait_event(other.record())
            specs = [MPI.IN_PLACE if side is call.source and name == "source" and side is None
                     and "out" in arrays and method != "scatterv" else
                     MPI.IN_PLACE if name == "out" and call.in_place_sink else
                     None if side is None else call.spec(side[0], arrays[name])
                     for name, side in (("source", call.source), ("out", call.out))]
            specs = [as_resident(one) for one in specs]
            with stream:
                extra = [root] if method in ROOTED else []
                made = getattr(resolve, method)(size, group.rank, *specs, *extra)
                group.queue(made, queue_of(specs).stream)
                read = arrays["out"].copy() if "out" in arrays else None
                for array in arrays.values():
                    array[...] = 78
        places.append((group, stream, waits, read, call))
    if any(stream.synchronized != waits for _, stream, waits, _, _ in places):
        raise AssertionError("the host waited for a stream")
    bad = []
    for group, stream, _, read, call in places:
        with group.device:
            stream.synchronize()
        if read is not None and read.raw.tobytes() != call.out[2].tobytes():
            bad.append(group.rank)
    return bad


def random_sizes(size, method, in_place, chance):
    """Elements for each pair of ranks; symmetric where an alltoall is in place."""
    table = [[chance.choice((0, 0, 1, 3, 8)) for _ in range(size)] for _ in range(size)]
    if in_place and method.startswith("alltoall"):
        table = [[table[min(a, b)][max(a, b)] for b in range(size)] for a in range(size)]
    return table


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "f8", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_any_sizes_on_any_number_of_ranks(method, dtype):
    chance = random.Random(2026)
    for size, in_place in product(range(1, 9), (False, True)):
        machine, installing = world(size, seed=size if in_place else None)
        with installing as cupy:
            ranks = NcclRanks(cupy, size)
            for kind in ("null", "non_blocking"):
                sizes = random_sizes(size, method, in_place, chance)
                assert not make(ranks, method, sizes, dtype, in_place, kind)
            machine.finish_all()
            ranks.free()
        assert not machine.held["communicators"]


@pytest.mark.parametrize("method", METHODS)
def test_ranks_without_data_call_nothing(method):
    machine, installing = world(3)
    with installing as cupy:
        ranks = NcclRanks(cupy, 3)
        assert not make(ranks, method, [[0] * 3] * 3)
        assert not machine.calls["send"] and not machine.calls["recv"]
        only = [[0, 0, 5], [0, 0, 0], [0, 0, 0]] if method.startswith("all") else [[0, 0, 5]] * 3
        assert not make(ranks, method, only)  # some ranks have nothing to send or to receive
        assert machine.calls["send"] == machine.calls["recv"] >= 1


#: Broken variants: what is replaced in the module, by what, and a method that they break.
BROKEN = {
    "equal blocks": ("_blocks", lambda buffer, size: {} if buffer is None else {
        rank: (nccl_group.at(buffer, rank * (buffer.count // size)), buffer.count // size)
        for rank in range(size)}, "alltoallv", False),
    "blocks one after the other": ("_blocks", lambda buffer, size: {} if buffer is None else {
        rank: (nccl_group.at(buffer, sum(buffer.counts[:rank])), count)
        for rank, count in enumerate(buffer.counts)}, "scatterv", False),
    "an own block that is transferred in place": (
        "_exchange", lambda group, stream, sends, receives, skipped=None, real=(
            nccl_group._exchange): real(group, stream, sends, receives), "allgatherv", True),
    "a whole buffer for the root alone": (
        "_whole", lambda buffer, peers: {} if buffer is None else {
            0: (nccl_group.at(buffer), buffer.count)}, "gatherv", False),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_variant_is_caught(what, monkeypatch):
    name, instead, method, in_place = BROKEN[what]
    sizes = [[2, 3, 4], [3, 5, 1], [4, 1, 6]]

    def found():
        _, installing = world(3)
        with installing as cupy:
            try:
                return make(NcclRanks(cupy, 3), method, sizes, in_place=in_place)
            except CudaError as error:
                return str(error)

    assert not found()
    monkeypatch.setattr(nccl_group, name, instead)
    assert found()
