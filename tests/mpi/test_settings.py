"""What a program has set for itself: NumPy's errors, warnings, masks, variables of one rank."""

import itertools
import time
import warnings

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.arrays.half import BLOCK
from hpccoll.comm import profiled
from hpccoll.config import SETTINGS
from hpccoll.errors import ArgumentError, CollectiveTimeout
from hpccoll.runtime.execution.built import BUILT

pytestmark = pytest.mark.mpi
RAW = MPI.Intracomm(MPI.COMM_WORLD)
#: A value of every variable, which the last rank alone has; and what the error says of it.
DIFFERENT = {
    "ALGORITHM": ("allreduce=ring", "{'allreduce': ('ring', {})}"),
    "SEGMENT_BYTES": ("64K", "65536"),
    "TOPOLOGY": ("{size}x1", "Topology"), "SHARED_MEMORY": ("no", "'no'"),
    "DETERMINISM": ("run", "'run'"), "PROGRESS": ("calls", "'calls'"),
    "LEVELS": ("node,socket", "('node', 'socket')"), "NETWORK": ("/absent", "'/absent'"),
    "CONTRACT": ("off", "'off'"), "CHECKSUMS": ("yes", "'yes'"),
    "CHECK": ("results", "('results',)"),
    "TRACE": ("{path}", "set"), "PROFILE": ("yes", "set"),
    # Ranks may differ in these.
    "TIMEOUT": ("99", ""), "REPORT": ("99", ""), "EXECUTOR": ("python", ""), "LOG": ("debug", ""),
    "HUGE_PAGES": ("no", ""), "TRACE_PHASES": ("yes", "")}


@pytest.mark.parametrize("algorithm", ["auto", *(
    name for name, entry in ALGORITHMS["allreduce"].items() if not entry.exact_only)])
def test_sums_that_overflow_are_infinite_and_silent(world, algorithm):
    """Raising on some ranks only, half-way, would leave the others waiting."""
    for dtype, count, settings in itertools.product(
            ("f8", "f4", "f2", "c16"), (2, BLOCK // 2),
            ("raise", "ignore" if world.rank else "raise", "warn")):
        most = numpy.finfo(dtype).max
        given, out = numpy.full(count, most, dtype), numpy.zeros(count, dtype)
        with (world.using(allreduce=algorithm), numpy.errstate(all=settings),
              warnings.catch_warnings()):
            warnings.simplefilter("error")
            world.Allreduce(given, out)
            assert (out.real == (numpy.inf if world.size > 1 else most)).all()
            assert numpy.geterr()["over"] == settings  # ours are for the kernels alone


@pytest.mark.parametrize("way", ["ring", "recursive_doubling"])
def test_the_progress_thread_is_silent_too(world, way):
    given, out = numpy.full(9, 1e308), numpy.empty(9)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("the MPI library serves all requests")
    world.layout  # sets it up: until then the library serves nonblocking calls
    with world.using(iallreduce=way), warnings.catch_warnings():
        warnings.simplefilter("error")
        world.Iallreduce(given, out).Wait()
    assert numpy.isinf(out).all() == (world.size > 1)


@pytest.mark.mpi(min_size=2)
def test_a_time_out_of_one_communicator(world):
    """Others have none."""
    comm = hpccoll.Comm(MPI.Intracomm(world).Dup(), timeout=0.6)
    assert comm.timeout == 0.6 and world.timeout == hpccoll.Comm(comm).timeout == float("inf")
    with comm.using(barrier="dissemination"):
        comm.Barrier()
        start = time.monotonic()
        if world.rank == 0:
            with pytest.raises(CollectiveTimeout, match=r"^hpccoll: rank \d (.|\n)*0.6 s"):
                comm.Barrier()
            assert 0.5 < time.monotonic() - start < 8
    MPI.Intracomm.Barrier(world)
    for timeout in (0, -1, "soon", True, float("nan")):
        with pytest.raises(ArgumentError, match="timeout: .*0.*'off'"):
            hpccoll.Comm(world, timeout=timeout)
    assert hpccoll.Comm(world, timeout="off").timeout == float("inf")


def test_masks_are_no_part_of_what_travels(world):
    given = numpy.ma.array(numpy.arange(4.0), mask=[0, 1, 0, 0])
    found = numpy.ma.zeros(4)
    with world.using(allreduce="ring"):
        world.Allreduce(given if world.rank % 2 else given.data, found)
    assert (found.data == world.size * numpy.arange(4)).all()


def by_name(comm, result):
    """A call that the MPI library may not run before set-up."""
    with comm.using(bcast="binomial"):
        comm.Bcast(result)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_variable_of_one_rank_is_named_on_all_or_harmless(monkeypatch, tmp_path, name):
    text, shown = DIFFERENT[name]
    last = RAW.size - 1
    monkeypatch.setattr(profiled, "write_at_end", lambda folder: None)
    monkeypatch.delenv(f"HPCCOLL_{name}", raising=False)
    if RAW.rank == last and (name != "EXECUTOR" or BUILT):
        monkeypatch.setenv(f"HPCCOLL_{name}", text.format(size=RAW.size, path=tmp_path))
    comm, result = hpccoll.Comm(RAW.Dup()), numpy.zeros(10)
    if not shown:
        for _ in range(3):
            comm.Allreduce(numpy.ones(10), result)
            comm.allreduce(1)
        assert (result == comm.size).all()
    else:
        # Some settings decide whether the first call may come before set-up, which compares all.
        first = (lambda: comm.Allreduce(numpy.ones(10), result)) if name in (
            "ALGORITHM", "DETERMINISM", "CHECKSUMS", "CHECK") else lambda: comm.layout
        for call in (first, lambda: by_name(comm, result), lambda: comm.layout):
            with pytest.raises(ArgumentError, match=f"^HPCCOLL_{name}: ") as caught:
                call()
            assert shown in str(caught.value) and f" on rank {last}" in str(caught.value)
        assert not result.any()
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_failed_setup_is_none_of_the_next_communicators():
    last = RAW.rank == RAW.size - 1
    first, second = hpccoll.Comm(RAW.Dup(), checksums=last), hpccoll.Comm(RAW.Dup())
    with pytest.raises(ArgumentError):
        first.Barrier()
    if not last:  # which finds the others where that set-up has left them
        time.sleep(0.3)
    second.Barrier()
    first.Free()
    second.Free()


def test_every_variable_is_tried_on_one_rank():
    """The first collective compares HPCCOLL_TUNING: tests/mpi/test_tune.py."""
    assert {f"HPCCOLL_{name}" for name in DIFFERENT} == set(SETTINGS) - {"HPCCOLL_TUNING"}
    assert {f"HPCCOLL_{name}" for name, (_, shown) in DIFFERENT.items() if shown} == {
        name for name, setting in SETTINGS.items() if setting.shared}
