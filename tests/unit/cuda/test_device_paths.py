"""Devices: memory paths, probes, transfers, windows and IPC."""

import os
import re
import subprocess
import sys
import threading
import warnings
from itertools import combinations
from math import inf
from types import ModuleType, SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms import schedule
from hpccoll.calls.layouts import vector_layout
from hpccoll.cuda import device, device_probes, gpus, ipc, windows
from hpccoll.cuda.device_paths import (
    WAYS,
    Answer,
    RankReport,
    Share,
    describe_ways,
    paths_between,
    shares,
    way_of,
)
from hpccoll.cuda.gpus import GpuLinks, choose_gpu, doubt, parse_links
from hpccoll.cuda.node_answers import NodeAnswers
from hpccoll.cuda.staging import StagedBuffer
from hpccoll.cuda.transfers import transfers
from hpccoll.cuda.windows import WindowedBuffer
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.machine import discovery
from hpccoll.runtime.planning import plan as plans
from support.gpu.device import installed
from support.gpu.streams import CudaError, Devices

# Ways of device data: which serves a pair of ranks, why not the others, for many ranks at once
YES = {way.name: Answer(True, f"{way.name} was tried") for way in WAYS}


def told(host, device="gpu", **other):
    return RankReport(host, device,
                      {**YES, **{name: Answer(False, why) for name, why in other.items()}})


@pytest.mark.parametrize(("one", "other", "way"), [
    (told(0), told(0), "nccl"),
    (told(0, nccl="no"), told(0), "ipc"),
    (told(0, nccl="no"), told(4), "mpi"),  # no IPC between nodes
    (told(0), told(4, nccl="no", mpi="no"), "staged"),
    (told(0, "", nccl="no", ipc="no", mpi="no", staged="no"), told(0), "")])
def test_the_first_that_serves_both_is_the_way(one, other, way):
    assert way_of(one, other) == way_of(other, one) == way


def test_of_two_reasons_the_ranks_own_comes_first():
    one, other = told(0, nccl="too old"), told(0, nccl="not there")
    assert paths_between(one, other)["nccl"] == paths_between(other, one)["nccl"] == (False,
                                                                                      "not there")


def test_what_nobody_told_of_is_no_way():
    assert way_of(RankReport(0, "a", {}), told(0)) == ""


JOB = [told(4 * (rank // 4), **({"mpi": "killed"} if rank % 3 else {}))
       for rank in range(12)]


@pytest.mark.parametrize("size", range(2, len(JOB) + 1))
def test_shares_are_those_of_all_pairs(size):
    asked = {}
    for pair in combinations(range(size), 2):
        for name, found in paths_between(*(JOB[rank] for rank in pair)).items():
            asked.setdefault((name, *found), []).append(pair)
    given = shares(JOB[:size])
    assert {share[:3]: share.pairs for share in given} == {
        key: len(pairs) for key, pairs in asked.items()}
    assert all(share.first in asked[share[:3]] for share in given)


def test_lines_say_for_whom_and_why():
    shown = describe_ways(JOB)
    assert shown[0] == "nccl   yes: nccl was tried"
    assert shown[1].startswith("ipc    no: the ranks do not share a node (48 pairs of ranks, ")
    assert shown[2].startswith("ipc    yes: ipc was tried (18 pairs of ranks, ")
    assert shown[-1] == "staged yes: staged was tried"
    assert describe_ways(JOB[:1]) == [f"{name:6} yes: {name} was tried" for name in YES]


def test_a_share_of_many_ranks_takes_no_time_for_each_pair():
    many = [told(8 * (rank // 8)) for rank in range(8000)]
    pairs = 8000 * 7999 // 2
    assert Share("nccl", True, YES["nccl"].why, pairs, (0, 1)) in shares(many)


# What a rank finds out about ways: with and without devices, and what the probe's end means
def test_every_way_is_looked_for():
    assert list(device_probes.LOOKS) == [way.name for way in WAYS]


@pytest.mark.parametrize(("served", "why"), [(False, "CuPy is not installed"),
                                             (True, "no device is visible")])
def test_a_rank_without_a_device_says_why(monkeypatch, served, why):
    monkeypatch.setattr(device_probes, "visible_devices", lambda: ())
    monkeypatch.setattr(device, "has_cupy", lambda: served)
    told, = device_probes.agree_on_ways(MPI.COMM_SELF)
    assert told.device == "" and set(told.found.values()) == {(False, why)}


@pytest.fixture
def asked_anew():
    device.has_cupy.cache_clear()
    yield
    device.has_cupy.cache_clear()


def test_without_a_cupy_to_import_there_are_no_devices(monkeypatch, asked_anew, tmp_path):
    (tmp_path / "cupy.py").write_text("import a_library_that_this_node_lacks")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert device_probes.visible_devices() == ()  # an error would leave the others in a collective


@pytest.mark.parametrize(("end", "can", "why"), [
    (0, True, "sent device memory to itself"), (1, False, "ended with status 1"),
    (-11, False, "was killed by signal 11"),
    (subprocess.TimeoutExpired("python", 120), False, "test process failed: .*120 seconds")])
def test_what_the_probe_found_is_evidence(monkeypatch, end, can, why):
    def run(command, **how):
        assert command[-1] == "3"  # the device that is current
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(returncode=end)

    monkeypatch.setattr(subprocess, "run", run)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=3), runtime=SimpleNamespace(
        deviceGetPCIBusId=lambda number: f"0000:0{number}:00.0"))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "NODE_ANSWERS", NodeAnswers())
    device.probe_mpi.cache_clear()
    try:
        found = device.probe_mpi()
        assert found.can is can is device.mpi_moves_device_memory()
        assert re.search(why, found.why)
    finally:
        device.probe_mpi.cache_clear()


def test_a_result_is_kept_unless_the_file_system_is_full(monkeypatch):
    answers, runs = NodeAnswers(), []
    answers.connect(MPI.COMM_SELF)

    def find(key):
        return answers.find(key, lambda: runs.append(key) or Answer(True, key))

    def full(*_):
        raise OSError(28, "No space left on device")

    try:
        assert find("a") == find("a") == Answer(True, "a") and runs == ["a"]
        monkeypatch.setattr(os, "pwrite", full)
        assert find("b") == find("b") == Answer(True, "b") and runs == ["a", "b", "b"]
    finally:
        os.close(answers.file)


# What nvidia-smi and Linux say of GPUs, in the forms that drivers have had
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


# What the end of a child process means that reads device memory of this one
probed = ipc.probe_ipc.__wrapped__


@pytest.mark.parametrize(("status", "can", "why"), [
    (0, True, "process read device memory"), (1, False, "ended with status 1"),
    (-11, False, "was killed by signal 11")])
def test_the_end_of_the_child_is_the_answer(status, can, why, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: (
        asked.append(command), SimpleNamespace(returncode=status))[1])
    with installed(False, Devices(), tmp_path):
        answer = probed()
    assert answer[0] == can and why in answer[1]
    assert len(asked) == 1 and all(bytes.fromhex(one) for one in asked[0][4:])


@pytest.mark.parametrize("function", ["malloc", "ipcGetMemHandle", "ipcGetEventHandle"])
def test_what_cuda_refuses_is_the_answer(function, tmp_path):
    machine = Devices()
    machine.faults[function] = -inf
    with installed(False, machine, tmp_path):
        answer = probed()
    assert not answer[0] and function in answer[1]


def test_the_child_uses_the_device_that_is_current(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: (
        asked.append(command), SimpleNamespace(returncode=0))[1])
    with installed(False, Devices(3), tmp_path) as cupy, cupy.cuda.Device(2):
        assert probed()[0]
    source, number = asked[0][2:4]
    assert number == "2" and "cupy.cuda.Device(int(sys.argv[1])).use()" in source


def test_without_cupy_it_is_no(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not probed()[0]


def test_a_ring_sends_before_all_is_there_and_stores_block_by_block():
    built = schedule("allreduce", "ring", 4)
    program = lower(built.program(1), vector_layout(built, 1, 40, False)[0])
    loads, stores = (transfers(program, (name,), 1, 1) for name in (IN, OUT))
    # Its own block is sent, and added to the next one; then one block after the other.
    assert loads.loads == (((0, 20),), ((30, 40),), ((20, 30),))
    assert loads.needs[:4] == ((0,), (1,), (2,), ())
    assert [ranges for ranges, in stores.stores] == [(20, 30), (10, 20), (0, 10), (30, 40)]
    assert transfers(program, (IN,), 1, 20).loads == (((0, 20),), ((20, 40),))


def test_what_has_no_order_is_loaded_before_everything_and_stored_after_everything():
    ends = (Message(SEND, 1, Extent(IN, 0, 4)), Message(RECV, 1, Extent(OUT, 0, 4)))
    phases = (Phase((), ends, ()), Phase((), (), (Local(Extent(OUT, 8, 2), Extent(IN, 4, 2)),)))
    ordered = LoweredProgram(phases, 0, 0)
    lanes = ordered._replace(waits=((), ()))
    assert [transfers(each, (IN,), 1, 1).needs for each in (ordered, lanes)] == [
        ((0,), (1,)), ((0,), (0,))]
    found = transfers(lanes, (OUT,), 1, 1)
    assert found.stores == (((0, 4), (8, 10)),) and found.gives == (0, 0) and found.shares == (2,)
    assert found.anywhere


# Windows: what is on its way when, how much memory is pinned, and who waits for what
COUNT = 240


def plan(segment, count=COUNT, algorithm="ring"):
    built = schedule("allreduce", algorithm, 4)
    layout, longest = vector_layout(built, 0, count, False)
    return plans.make(built, 0, layout, longest, segment)


@pytest.fixture
def place():
    """A double, and a caller's stream on it."""
    machine = Devices()
    with installed(False, machine) as cupy:
        yield SimpleNamespace(cupy=cupy, machine=machine,
                              stream=cupy.cuda.Stream(non_blocking=True))


def windowed(place, plan, names=(IN,), shared=True):
    array = place.cupy.asarray(numpy.arange(COUNT, dtype="f4"))
    staged = StagedBuffer(place.cupy, array.device, place.stream, shared)
    return WindowedBuffer(plan, array, staged, names), array


def test_the_next_segments_are_loaded_while_the_first_runs(place):
    made, _ = windowed(place, plan(5))  # 60 elements a block: 12 segments
    made.begin(0)
    assert set(made.arrived) == {0, 1, 2}  # two run, one is loaded ahead, and more do not fit
    made.begin(1)
    assert set(made.arrived) == {0, 1, 2, 3} and len(made.windows) == 4
    assert not any(event.task.done for events in made.arrived.values() for event in events)
    assert made.inward is not made.outward and place.stream not in (made.inward, made.outward)


@pytest.mark.parametrize(("prefetch", "number"), [(1 << 20, 4), (0, 2)])
def test_pinned_memory_is_as_large_as_the_segments_under_way(place, monkeypatch, prefetch, number):
    monkeypatch.setattr(windows, "AHEAD_BYTES", prefetch)
    made, _ = windowed(place, plan(5))
    assert len(made.windows) == number
    # Four blocks, each at the beginning of a line of 64 bytes.
    assert place.machine.held["pinned"] == number * 4 * 64
    made.begin(0)
    assert max(made.arrived) == (2 if prefetch else 0)


def test_what_is_small_goes_through_one_window_on_the_callers_stream(place):
    made, _ = windowed(place, plan(0))
    assert len(made.windows) == 1 and made.inward is made.outward is place.stream
    assert place.machine.held["streams"] == 1  # the caller's
    made.begin(0)
    assert place.machine.calls["memcpyAsync"] == 1  # not one for each block


def test_a_large_segment_goes_block_by_block(place, monkeypatch):
    monkeypatch.setattr(windows, "FAIR", 64)
    made, _ = windowed(place, plan(0))
    made.begin(0)
    assert len(made.arrived[0]) == 3 and len(made.windows) == 1
    assert made.inward is not place.stream


def test_the_host_waits_for_nothing_but_asks(place):
    made, array = windowed(place, plan(5), (OUT,))
    made.begin(0)
    segment = made.plan.segments[0].program
    for phase in range(len(segment.phases)):
        while not made.can_start(0, phase):
            pass
        for message in segment.phases[phase].messages:
            if message.extent.buffer == OUT:
                made.view(0, message.extent)[...] = phase
        made.queue_stores(0, phase)
    made.staged.finish()
    calls = place.machine.calls
    assert not calls["eventSynchronize"] and not calls["streamSynchronize"]
    assert numpy.array_equal(array.raw, numpy.arange(COUNT))  # only queued
    place.stream.synchronize()
    assert not numpy.array_equal(array.raw, numpy.arange(COUNT))


def test_results_that_any_stream_may_read_are_there_at_the_end(place):
    made, array = windowed(place, plan(0), (OUT,), shared=False)
    made.begin(0)
    made.windows[0].view("f4")[...] = 7
    for phase in range(len(made.plan.segments[0].program.phases)):
        made.queue_stores(0, phase)
    made.staged.finish()
    assert set(array.raw.tolist()) == {7}


def test_a_fault_of_the_device_ends_the_waiting(place):
    made, _ = windowed(place, plan(5), (IN, OUT))
    made.begin(0)
    assert not made.can_start(0, 0)
    place.machine.fault = 700  # an illegal address, in any kernel of the process
    with pytest.raises(place.cupy.cuda.runtime.CUDARuntimeError, match="700"):
        made.can_start(0, 0)


def test_a_thread_asks_on_the_device_of_the_array():
    """A context on another device takes hundreds of megabytes there, of every process."""
    machine = Devices(2)
    with installed(False, machine) as cupy:
        with cupy.cuda.Device(1):
            place = SimpleNamespace(cupy=cupy, stream=cupy.cuda.Stream(non_blocking=True))
            made, _ = windowed(place, plan(5), (IN, OUT))
            made.begin(0)
        machine.contexts.clear()
        thread = threading.Thread(target=made.can_start, args=(0, 0))
        thread.start()
        thread.join()
        assert machine.contexts == {1}


def test_a_fault_of_the_first_copy_leaves_nothing_behind(place):
    array = place.cupy.asarray(numpy.arange(COUNT, dtype="f4"))
    staged = StagedBuffer(place.cupy, array.device, place.stream, True)
    call = SimpleNamespace(source=SimpleNamespace(array=array, staged=staged), sink=None)
    place.machine.faults["memcpyAsync"] = 2  # the third one
    with pytest.raises(CudaError):
        windows.windows_of(call, plan(5))
    place.machine.finish_all()  # what was queued before it finds its memory
