"""Buffers on a device: passed as those on the host are."""

import numpy
import pytest

from hpccoll.calls import resolve
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import UNEVEN, make
from hpccoll.measure.device_buffers import DeviceBuffers
from support.gpu.device import installed

SIZE = 3


def blocks(case, rank, kind):
    """Which blocks a call on such buffers moves, and where they lie."""
    call = getattr(resolve, case.collective)(SIZE, rank, *kind(case, rank).arguments)
    return call.name, call.in_place, call.key


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("collective", UNEVEN)
def test_blocks_of_unlike_sizes_are_those_of_the_host(collective, in_place):
    case = make(collective, SIZE, 960, numpy.dtype("f4"), in_place=in_place, uneven=True, root=1)
    assert len(set(case.counts)) > 1
    for cuda_aware in (False, True):
        with installed(cuda_aware):
            for rank in range(SIZE):
                there = blocks(case, rank, DeviceBuffers)
                assert there == blocks(case, rank, CaseBuffers), rank
