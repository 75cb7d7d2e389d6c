"""What memory allows."""

import numpy
import pytest
from mpi4py import MPI
from unit.bench_results import result

from hpccoll.ir.methods import METHODS
from hpccoll.measure.cases import make
from hpccoll.tools.bench import roofline
from support.folded import folded
from support.gpu.device import installed

FLOAT = numpy.dtype("f4")


def demanded(case):
    """What :mod:`hpccoll.ir.collectives` demands: inputs that matter, outputs not there already."""
    read, written = set(), 0
    for rank in range(case.size):
        for block, ranks in case.expected_blocks(rank):
            there = tuple(ranks) == (rank,) and (case.shares(rank) or case.collective == "bcast")
            if not there:
                written += case.extent(block)
                read |= {(contributor, block) for contributor in ranks}
    return (sum(case.extent(block) for _, block in read) + written) * case.dtype.itemsize


@folded("collective", METHODS)
@folded("in_place", [False, True])
@folded("uneven", [False, True])
@folded("size", [1, 2, 3, 5])
def test_bytes_that_must_move(collective, in_place, uneven, size):
    case = make(collective, size, 600 * size, FLOAT, root=size - 1, in_place=in_place,
                uneven=uneven)
    assert roofline.memory_bytes(case) == demanded(case)


def test_limit_is_a_part_of_what_memory_allows():
    case = make("allreduce", 4, 1 << 20, FLOAT)
    seconds = roofline.min_seconds(case, 8e9)
    assert seconds == pytest.approx(2 * 4 * (1 << 20) / 8e9)
    assert result("ring", [2e6 * seconds], limit_seconds=seconds).limit == pytest.approx(0.5)
    assert result("ring", [1]).limit is None
    assert roofline.min_seconds(make("allreduce", 4, 1 << 10, FLOAT), 8e9) is None
    assert roofline.min_seconds(make("barrier", 4, 0, FLOAT), 8e9) is None


def test_copies_have_a_rate(monkeypatch):
    monkeypatch.setattr(roofline, "COPIED", 1 << 20)
    assert 1e8 < roofline.copy_rate(MPI.COMM_SELF) < 1e13


def test_copies_on_a_gpu_have_one_when_they_are_over(monkeypatch):
    monkeypatch.setattr(roofline, "ON_GPUS", 1 << 20)
    with installed(False) as cupy:
        waits = cupy.cuda.get_current_stream().synchronized
        assert 1e8 < roofline.copy_rate(MPI.COMM_SELF, on_device=True) < 1e13
        assert cupy.cuda.get_current_stream().synchronized == waits + roofline.TURNS
