"""What nvidia-smi and Linux say of GPUs, in the forms that drivers have had."""

import os
import warnings

import pytest
from mpi4py import MPI

from hpccoll.cuda import gpus
from hpccoll.cuda.gpus import GpuLinks, choose_gpu, doubt, parse_links
from hpccoll.machine import discovery

LISTED = """0, 00000000:07:00.0, GPU-aa11, NVIDIA A100-SXM4-40GB
1, 00000000:0F:00.0, GPU-aa22, NVIDIA A100-SXM4-40GB
2, 00000000:47:00.0, GPU-bb33, NVIDIA A100-SXM4-40GB
3, 00000001:47:00.0, GPU-bb44, NVIDIA A100-SXM4-40GB
"""
ADDRESSES = ("0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0001:47:00.0")
#: Two islands; an adapter, affinities and a legend beside the GPUs.
MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tPHB\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tPHB\tSYS\t X \tNV2\tSYS\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV2\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def test_links_and_islands():
    found = parse_links(LISTED, MATRIX)
    assert found.addresses == ADDRESSES and len(found.links) == 6
    assert found.names[0] == "GPU-aa11" and set(found.models) == {"NVIDIA A100-SXM4-40GB"}
    assert found.link_between(ADDRESSES[0], ADDRESSES[1]) == "NV4"
    assert found.link_between(ADDRESSES[3], ADDRESSES[2]) == "NV2"
    assert found.link_between(ADDRESSES[2], ADDRESSES[0]) == "PHB"
    assert found.islands() == dict(zip(ADDRESSES, (0, 0, 1, 1), strict=True))


def test_neighbours_of_neighbours_are_one_island():
    chain = GpuLinks(tuple("abcd"), (), {("a", "d"): "NV1", ("b", "c"): "NV1", ("c", "d"): "NV1"})
    assert set(chain.islands().values()) == {0}


def test_what_says_nothing():
    assert parse_links("", "") == GpuLinks((), (), {})
    assert parse_links(LISTED, "").islands() == dict(zip(ADDRESSES, range(4), strict=True))
    assert parse_links("No devices were found", MATRIX).links == {}


def test_no_driver_no_program(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "_topology_text", lambda *words: pytest.fail("nvidia-smi was asked"))
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "none")
    assert gpus.gpu_links() == GpuLinks()


def test_the_program_is_asked_where_there_is_a_driver(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    (tmp_path / "listed").write_text(LISTED)
    (tmp_path / "matrix").write_text(MATRIX)
    program.write_text(f'#!/bin/sh\ncase "$1" in topo) cat {tmp_path}/matrix;; '
                       f'*) cat {tmp_path}/listed;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpus, "DRIVER", program)
    assert gpus.gpu_links() == parse_links(LISTED, MATRIX)
    program.write_text("#!/bin/sh\nexit 9\n")  # the driver and the program do not fit
    assert gpus.gpu_links() == GpuLinks()


@pytest.mark.parametrize("visible, found", [
    ("2", ADDRESSES[2]), ("3,0", ADDRESSES[3]), ("GPU-bb3", ADDRESSES[2]), ("GPU-bb", ""),
    ("", ""), ("7", ""), ("-1", ""), ("MIG-1", "")])
def test_the_gpu_that_a_rank_begins_on(visible, found):
    assert choose_gpu(parse_links(LISTED, MATRIX), {"CUDA_VISIBLE_DEVICES": visible}) == found
    assert choose_gpu(GpuLinks(), {"CUDA_VISIBLE_DEVICES": visible}) == ""


@pytest.mark.parametrize("kinds, islands, environ, doubtful", [
    ("xy", 2, {"CUDA_VISIBLE_DEVICES": "1"}, True),
    ("xy", 2, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
    ("xy", 2, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
    ("xy", 2, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, False), ("xy", 2, {}, False),
    ("xx", 2, {"CUDA_VISIBLE_DEVICES": "1"}, False),
    ("xy", 1, {"CUDA_VISIBLE_DEVICES": "1"}, False)])
def test_numbers_are_doubtful_where_cuda_may_count_otherwise(kinds, islands, environ, doubtful):
    links = {("a", "b"): "SYS" if islands > 1 else "NV2"}
    said = doubt(GpuLinks(("a", "b"), ("GPU-a", "GPU-b"), links, tuple(kinds)), environ)
    assert bool(said) is doubtful
    assert not doubtful or ("(x, y)" in said and "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in said)


def test_groups_of_memory(tmp_path):
    for number, processors in ((0, "0-3,8"), (1, "4-7")):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{processors}\n")
        (node / "distance").write_text("10 21\n" if number == 0 else "21 10\n")
    (tmp_path / "node10").mkdir()  # memory without processors, of a GPU: no row of distances
    device = tmp_path / ADDRESSES[0]
    device.mkdir()
    (device / "numa_node").write_text("1\n")
    assert gpus.gpu_numa(ADDRESSES[0], tmp_path) == 1
    assert gpus.gpu_numa(ADDRESSES[1], tmp_path) == -1
    (tmp_path / "node10").rmdir()
    assert gpus.numa_distance((5, 6), 1, tmp_path) == gpus.NEAR
    assert gpus.numa_distance((8,), 1, tmp_path) == 21
    assert gpus.numa_distance((0, 4), 1, tmp_path) == gpus.NEAR  # the nearest counts
    assert gpus.numa_distance((0,), 7, tmp_path) == -1
    assert gpus.numa_distance((0,), -1, tmp_path / "none") == -1


def test_modules_for_the_network(tmp_path):
    modules = {"nvidia_peermem": tmp_path, "gdrdrv": tmp_path / "none"}
    assert list(gpus.gpu_direct(modules)) == ["nvidia_peermem"]


def test_it_warns_where_numbers_of_gpus_are_doubtful(monkeypatch):
    links = GpuLinks(("a", "b"), (), {("a", "b"): "SYS"}, ("slow", "fast"))
    monkeypatch.setattr(gpus, "gpu_links", lambda: links)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with pytest.warns(RuntimeWarning, match="HPCCOLL_LEVELS: .*set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, ("node", "gpu"),
                           gpu_island=gpus.gpu_island)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, gpu_island=gpus.gpu_island)
