"""Allreduce of device memory by each data path, beside copies by hand, NCCL and a plain copy.

    mpiexec -n 2 python benchmarks/gpu_calls.py --json gpu.json
    mpiexec -n 4 python benchmarks/gpu_calls.py --json gpu.json --add
    python benchmarks/gpu_calls.py --show gpu.json

Needs CuPy and a GPU, which ranks may share. Times are medians, of the slowest rank: of the whole
call until its result is there, and of the host inside the call. The floor is a copy of the array
on the device by all ranks at once: each allreduce has to read it and write it. Exit status: 0,
1 for wrong results, 2 for bad options, 130 when interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import statistics
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from time import perf_counter
from typing import Any, NamedTuple

import click
import numpy
from mpi4py import MPI

from hpccoll.cli.options import check_outputs, open_output
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    WRONG,
    RankCommand,
    abort,
    agree_on_rank_0,
    complain,
    stoppable,
)
from hpccoll.comm import Comm
from hpccoll.errors import HpccollError
from hpccoll.machine.launcher import require_mpi
from hpccoll.tools.bench import provenance
from hpccoll.units import short_size_text

NAME, SCHEMA = "gpu_calls", "hpccoll-gpu-1"
KIB, MIB = 1 << 10, 1 << 20
#: Bytes of a rank's array of float32.
SIZES = (8, 512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 2 * MIB, 16 * MIB, 64 * MIB, 128 * MIB,
         256 * MIB)
BY_HAND, NCCL, FLOOR = "by hand", "NCCL", "floor"
#: Ways of hpccoll: the algorithm, and whether the array is registered memory.
OURS = {"native": ("native", False), "auto": ("auto", False), "staged ring": ("ring", False),
        "registered ring": ("ring", True), "registered allpairs": ("allpairs", True),
        "by nccl": ("nccl", False)}
WAYS = (BY_HAND, *OURS, NCCL, FLOOR)
#: Fewest and most timed calls, and seconds that they take, about.
FEWEST, MOST, SECONDS = 5, 60, 0.3
#: Settings of NCCL for ranks that share a GPU.
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "8"}
#: Runs one call: in-place allreduce of an array by an operator.
Call = Callable[[Any, MPI.Op], None]


class Point(NamedTuple):
    """One way at one size.

    Attributes:
        way, nbytes: what was measured.
        seconds: of the whole call; ``None`` if it cannot run.
        host_seconds: of the host in the call.
        right: False if a result was wrong.
        problem: why it cannot run.
    """

    way: str
    nbytes: int
    seconds: float | None = None
    host_seconds: float | None = None
    right: bool = True
    problem: str = ""


class Way:
    """One way of an allreduce, on a communicator of its own.

    Attributes:
        problem: why it cannot run, the same on all ranks.
    """

    def __init__(self, name: str, world: MPI.Intracomm, cupy: Any, stream: Any, largest: int):
        self.name, self.world, self.cupy, self.stream = name, world, cupy, stream
        self.comm: Any = None
        self.call: Call
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            try:
                self.array = self._prepare(largest // 4)
                problem = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        self.problem = next(filter(None, world.allgather(problem)), "")
        if name in OURS and OURS[name][1] and caught and not self.problem:
            self.problem = str(caught[0].message)

    def _prepare(self, count: int) -> Any:
        cupy = self.cupy
        if self.name == BY_HAND:
            self.pinned = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(4 * count), "f4", count)
            self.call = self._by_hand
        elif self.name == NCCL:
            nccl, key = _nccl_key(self.world)
            ranks = nccl.NcclCommunicator(self.world.Get_size(), key, self.world.Get_rank())
            self.call = lambda x, op: ranks.allReduce(
                x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32,
                nccl.NCCL_SUM if op == MPI.SUM else nccl.NCCL_MAX, self.stream.ptr)
        elif self.name == FLOOR:
            self.other = cupy.empty(count, "f4")
            self.call = lambda x, op: self.other[:x.size].__setitem__(..., x)
        else:
            self.comm = Comm(MPI.Intracomm(self.world.Dup()))
            if OURS[self.name][0] != "auto":
                self.comm.choose(allreduce=OURS[self.name][0])
            self.call = lambda x, op: self.comm.Allreduce(MPI.IN_PLACE, x, op)
            if OURS[self.name][1]:
                return self.comm.empty(count, "f4", xp=cupy)
        return cupy.empty(count, "f4")

    def _by_hand(self, x: Any, op: MPI.Op) -> None:
        host = self.pinned[:x.size]
        x.get(stream=self.stream, out=host)
        self.stream.synchronize()
        MPI.Intracomm.Allreduce(self.world, MPI.IN_PLACE, host, op)
        x.set(host, stream=self.stream)

    def measure(self, nbytes: int) -> Point:
        """Check one result, and time repeated calls; collective."""
        world, problem, point = self.world, "", Point(self.name, nbytes)
        try:
            point = self._measure(nbytes)
        except HpccollError as error:  # on all ranks; others end the program
            problem = f"{type(error).__name__}: {error}"
        self.problem = next(filter(None, world.allgather(problem)), "")
        return point._replace(problem=self.problem)

    def _measure(self, nbytes: int) -> Point:
        world, x = self.world, self.array[:nbytes // 4]
        x[...] = world.Get_rank() + 1
        self.stream.synchronize()
        self.call(x, MPI.SUM)
        self.stream.synchronize()
        total = world.Get_size() * (world.Get_size() + 1) / 2
        right = self.name == FLOOR or bool((self.cupy.asnumpy(x) == total).all())
        self._time(x)  # which prepares more than later ones
        longest = world.allreduce(self._time(x)[0], MPI.MAX)
        repeats = int(max(FEWEST, min(MOST, SECONDS / max(longest, 1e-6))))
        whole, host = zip(*(self._time(x) for _ in range(repeats)))
        return Point(self.name, nbytes,
                     world.allreduce(statistics.median(whole), MPI.MAX),
                     world.allreduce(statistics.median(host), MPI.MAX),
                     world.allreduce(right, MPI.LAND))

    def _time(self, x: Any) -> tuple[float, float]:
        """Seconds of a call, and of the host in it; the maximum keeps the values as they are."""
        self.stream.synchronize()
        MPI.Intracomm.Barrier(self.world)
        start = perf_counter()
        self.call(x, MPI.MAX)
        host = perf_counter() - start
        self.stream.synchronize()
        return perf_counter() - start, host

    def free(self) -> None:
        """Free its communicator, if no call has failed; a failed one may wait for ever."""
        if self.comm is not None and not self.problem:
            self.comm.Free()


def _nccl_key(world: MPI.Intracomm) -> tuple[Any, Any]:
    """Return CuPy's module of NCCL, and the key of a new communicator.

    Raises:
        HpccollError: a rank has no NCCL; on all ranks.
    """
    nccl: Any = None
    key, problem = None, ""
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")
        key = nccl.get_unique_id()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    found = world.allgather((key, problem))
    if any(problem for _, problem in found):
        raise HpccollError(next(problem for _, problem in found if problem))
    return nccl, found[0][0]


def measure(world: MPI.Intracomm, cupy: Any) -> Generator[Point, None, None]:
    """Measure every way at every size; collective, and every rank gets all points."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for name in WAYS:
            way = Way(name, world, cupy, stream, max(SIZES))
            try:
                for nbytes in SIZES:
                    yield (Point(name, nbytes, problem=way.problem) if way.problem
                           else way.measure(nbytes))
            finally:
                way.free()


def start_device(world: MPI.Intracomm) -> Any:
    """Return CuPy on this rank's GPU.

    Raises:
        HpccollError: a rank has no CuPy or no GPU; on all ranks.
    """
    cupy: Any = None
    near = world.Split_type(MPI.COMM_TYPE_SHARED)
    number, ranks, problem = near.Get_rank(), near.Get_size(), ""
    near.Free()
    try:
        cupy = importlib.import_module("cupy")
        devices = cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(number % devices).use()
        if devices < ranks:
            for name, value in SHARED.items():
                os.environ.setdefault(name, value)
    except Exception as error:  # includes errors of the driver
        problem = f"{type(error).__name__}: {error}"
    found = [(rank, each) for rank, each in enumerate(world.allgather(problem)) if each]
    if found:
        raise HpccollError(f"{NAME} needs CuPy and a GPU: rank {found[0][0]}: {found[0][1]}")
    return cupy


def device_facts(cupy: Any) -> dict[str, Any]:
    """Describe the GPU, its software, and how ranks share it."""
    runtime = cupy.cuda.runtime
    facts = {"device": runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode(),
             "devices": runtime.getDeviceCount(), "driver": runtime.driverGetVersion(),
             "cuda": runtime.runtimeGetVersion(), "cupy": cupy.__version__,
             "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ or os.path.exists("/tmp/nvidia-mps"),
             "nccl_variables": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}}
    try:
        facts["nccl"] = importlib.import_module("cupy.cuda.nccl").get_version()
    except Exception as error:
        facts["nccl"] = f"none: {error}"
    return facts


def table(run: dict[str, Any]) -> str:
    """Return the table of a run for docs/gpu.md: microseconds of the call, and of the host."""
    where, points = run["environment"], {}
    for each in run["results"]:
        points[each["nbytes"], each["way"]] = each
    ways = list(dict.fromkeys(each["way"] for each in run["results"]))
    lines = [f"{where['ranks']} ranks, {where['gpu']['device']}, MPS "
             f"{'on' if where['gpu']['mps'] else 'off'}, CUDA {where['gpu']['cuda']}, NCCL "
             f"{where['gpu']['nccl']}, {where['time'][:10]}; microseconds (of the host)", "",
             f"| bytes | {' | '.join(ways)} |", "|---|" + "---|" * len(ways)]
    for nbytes in dict.fromkeys(each["nbytes"] for each in run["results"]):
        cells = (_cell(points.get((nbytes, way))) for way in ways)
        lines.append(f"| {short_size_text(nbytes)} | {' | '.join(cells)} |")
    problems = {each["way"]: each["problem"] for each in run["results"] if each["problem"]}
    lines += ["", *(f"* {way}: {' '.join(problem.split())}" for way, problem in problems.items())]
    return "\n".join(lines).rstrip() + "\n"


def _cell(point: dict[str, Any] | None) -> str:
    if point is None or point["seconds"] is None:
        return "-"
    text = f"{1e6 * point['seconds']:,.0f} ({1e6 * point['host_seconds']:,.0f})"
    return text if point["right"] else f"{text} **wrong**"


def read_runs(path: str) -> list[dict[str, Any]]:
    """Return the runs of a record.

    Raises:
        HpccollError: it is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        if record["schema"] == SCHEMA:
            return list(record["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HpccollError(f"{path} is not a record of {NAME}: {error!r}") from error
    raise HpccollError(f"{path} is not a record of {NAME}: its schema is {record['schema']}")


@click.command(NAME, cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_path", metavar="FILE",
              help="Write a record of all times, in seconds; - is standard output.")
@click.option("--add", is_flag=True, help="Keep the runs that the record has.")
@click.option("--show", metavar="FILE", help="Print the tables of a record; measures nothing.")
def command(json_path: str | None, add: bool, show: str | None) -> None:
    """Measure an allreduce of CuPy arrays from 8 B to 256 MiB by each data path.

    \b
    mpiexec -n 2 python benchmarks/gpu_calls.py --json gpu.json
    """
    if show is not None:
        for run in read_runs(show):
            click.echo(table(run))
        return
    with stoppable() as stopped:
        require_mpi(steps=True)
        world, found, interrupted = MPI.Intracomm(MPI.COMM_WORLD), [], False
        try:
            before: list[dict[str, Any]] = []

            def check_record() -> None:
                check_outputs(json_path, None)
                if add and json_path is not None and os.path.exists(json_path):
                    before.extend(read_runs(json_path))

            agree_on_rank_0(world, check_record)
            cupy = start_device(world)
            with closing(measure(world, cupy)) as measuring:
                for each in measuring:
                    found.append(each)
                    # A rank that stops alone would leave the others waiting.
                    interrupted = world.allreduce(stopped(), MPI.LOR)
                    if interrupted:
                        break
            environment = provenance.record(world, None)
            if environment is not None:
                environment |= {"command": shlex.join(sys.argv), "gpu": device_facts(cupy)}
                run = {"environment": environment, "results": [each._asdict() for each in found]}
                if json_path is not None:
                    with open_output(json_path) as file:
                        json.dump({"schema": SCHEMA, "runs": [*before, run]}, file, indent=1)
                click.echo(table(run), err=json_path == "-")
        except HpccollError as error:
            complain(NAME, str(error))
            sys.exit(BAD_OPTIONS)
        except Exception as error:
            abort(world, error)
    if interrupted:
        complain(NAME, "interrupted: some ways were not measured")
    sys.exit(INTERRUPTED if interrupted else 0 if all(each.right for each in found) else WRONG)


if __name__ == "__main__":
    command()
