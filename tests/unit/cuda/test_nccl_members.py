"""Who can make an NCCL communicator."""

import pytest

from hpccoll.cuda.nccl import Member, has_mps, introduce, obstacle, takes_turns
from support.gpu.device import installed
from support.gpu.streams import Devices


@pytest.mark.parametrize("members, why", [
    ([("a", "0"), ("a", "1"), ("b", "0")], ""),
    ([("a", "0"), ("b", "0"), ("a", "0")], "ranks 0,2 share GPU 0 of a"),
    ([("a", "0"), ("a", "1", "2.9.0")], "2.27.3 on rank 0; 2.9.0 on rank 1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", True)], ""),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", False)], "NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", False)],
     "on all ranks; NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 1"),
    ([("a", "0", "2.28.9", True), ("a", "0", "2.28.9", True)],
     "version 2.30, with NCCL_MULTI_RANK_GPU_ENABLE=1, on all ranks; NCCL is 2.28.9 on ranks 0-1"),
    ([("a", "0", "2.30.7", True), ("a", "0", "2.28.9", False)],
     "; NCCL is 2.28.9 on rank 1; NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", True), ("b", "0", "2.32.3", False)],
     "NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 2"),
    ([("a", "0"), ("a", "1", "", False, "no driver"), ("a", "2", "", False, "x")],
     "rank 1 (and 1 more): no driver")])
def test_who_keeps_ranks_from_it(members, why):
    found = obstacle([Member(*one, *("2.27.3",) * (len(one) == 2)) for one in members])
    assert found == "" if not why else why in found


def test_what_a_rank_says_of_itself(monkeypatch):
    with installed(True, Devices(2)) as cupy:
        told = introduce(cupy.cuda.Device(1))
        assert told[1:] == ("0000:01:00.0", "2.27.3", False, "", False)
        monkeypatch.setattr(cupy.cuda.runtime, "deviceGetPCIBusId", lambda device: 1 / 0)
        assert introduce(cupy.cuda.Device(1)).problem == "ZeroDivisionError: division by zero"
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        assert "finds no NCCL" in introduce(cupy.cuda.Device(1)).problem


@pytest.mark.parametrize("number, enabled, shares", [
    ("2.30.7", "1", True), ("3.0.0", "1", True), ("2.9.8", "1", False), ("2.28.9", "1", False),
    ("2.30.7", "0", False), ("2.30.7", None, False)])
def test_nccl_shares_a_gpu_from_2_30_where_the_variable_is_set(monkeypatch, number, enabled,
                                                               shares):
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    if enabled is not None:
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled)
    with installed(True, Devices(1)) as cupy:
        major, minor, patch = map(int, number.split("."))
        cupy.cuda.nccl.get_version = lambda: (
            (10000 if (major, minor) >= (2, 9) else 1000) * major + 100 * minor + patch)
        member = introduce(cupy.cuda.Device(0))
    assert member.version == number
    assert (obstacle([member, member]) == "") is shares


@pytest.mark.parametrize("members, turns", [
    ([("a", "0", False), ("a", "1", False)], False),
    ([("a", "0", False), ("b", "0", False)], False),
    ([("a", "0", False), ("a", "0", False)], True), ([("a", "0", True), ("a", "0", True)], False),
    ([("a", "0", True), ("a", "0", False)], True), ([("a", "", False), ("a", "", False)], False)])
def test_ranks_take_turns_on_a_shared_gpu_without_mps(members, turns):
    assert turns is takes_turns([Member(host, device, has_mps=mps)
                                 for host, device, mps in members])


def test_mps_runs_where_its_pipe_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not has_mps()
    (tmp_path / "control").touch()
    assert has_mps()
