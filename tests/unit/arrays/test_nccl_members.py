"""Who can make an NCCL communicator."""

import pytest

from hpccoll.arrays.nccl_members import Member, introduce, obstacle
from hpccoll.testing.device import installed
from hpccoll.testing.streams import Devices


@pytest.mark.parametrize("members, why", [
    ([("a", "0"), ("a", "1"), ("b", "0")], ""),
    ([("a", "0"), ("b", "0"), ("a", "0")], "ranks 0,2 share GPU 0 of a"),
    ([("a", "0"), ("a", "1", "2.9.0")], "2.27.3 on rank 0; 2.9.0 on rank 1"),
    ([("a", "0"), ("a", "1", "", "no driver"), ("a", "2", "", "x")],
     "rank 1 (and 1 more): no driver")])
def test_who_keeps_ranks_from_it(members, why):
    found = obstacle([Member(*one, *("2.27.3",) * (len(one) == 2)) for one in members])
    assert found == "" if not why else why in found


def test_what_a_rank_says_of_itself(monkeypatch):
    with installed(True, Devices(2)) as cupy:
        told = introduce(cupy.cuda.Device(1))
        assert told[1:] == ("0000:01:00.0", "2.27.3", "")
        monkeypatch.setattr(cupy.cuda.runtime, "deviceGetPCIBusId", lambda device: 1 / 0)
        assert introduce(cupy.cuda.Device(1)).problem == "ZeroDivisionError: division by zero"
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        assert "finds no NCCL" in introduce(cupy.cuda.Device(1)).problem
