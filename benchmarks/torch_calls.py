"""Our process group of PyTorch beside Gloo's: calls of ``torch.distributed``, and steps of DDP.

    mpiexec -n 2 python benchmarks/torch_calls.py

Both groups are in the same processes, and take turns, so that what else runs on the machine hits
both. Times are medians, of the slowest rank. What DDP costs without communication is measured with
a hook that sends nothing; the rest of a step is the communication that is not hidden. Exit status:
0, 2 for bad options, 130 when interrupted.
"""

from __future__ import annotations

import importlib
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from importlib.metadata import version
from time import perf_counter
from typing import Any, NamedTuple

import click
from mpi4py import MPI
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hpccoll.cli import terminal
from hpccoll.cli.options import OneOf, check_outputs, open_output
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    RankCommand,
    abort,
    agree_on_rank_0,
    complain,
    stoppable,
)
from hpccoll.errors import HpccollError
from hpccoll.machine.launcher import require_mpi
from hpccoll.tools.bench import provenance
from hpccoll.units import short_size_text, time_text

NAME, SCHEMA = "torch_calls", "hpccoll-torch-1"
OURS, GLOO, SILENT = "hpccoll", "gloo", "no communication"
#: What can be measured.
CALLS, STEPS = "calls", "steps"
#: Bytes of a rank's tensor, the greater one of a call.
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20)
#: DDP: megabytes of parameters, and the widths of the layers that make them.
MODELS = {2: (350, 4), 25: (790, 10), 100: (1580, 10)}
BATCH, TURNS, TIMED, WARM = 64, 7, 17, 3
#: Seconds that one turn of a call takes, about.
TURN = 0.02


class BesideGloo(NamedTuple):
    """One call or step on both groups.

    Attributes:
        what: the call.
        nbytes: of a rank's tensor, or of the parameters.
        seconds: by group; of a step also without communication.
    """

    what: str
    nbytes: int
    seconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """Gloo's time over ours; of steps, the time that communication adds."""
        base = self.seconds.get(SILENT, 0.0)
        return (self.seconds[GLOO] - base) / max(self.seconds[OURS] - base, 1e-9)


def measure(only: str | None = None) -> Generator[BesideGloo, None, None]:
    """Compare the groups; collective over all ranks, which get the same times.

    Args:
        only: :data:`CALLS` or :data:`STEPS`; both where it is ``None``.

    Raises:
        HpccollError: PyTorch is not installed.
    """
    try:
        torch: Any = importlib.import_module("torch")
        ours: Any = importlib.import_module("hpccoll.torch")
    except ImportError as error:
        raise HpccollError(f"{NAME} needs PyTorch: {error}; install it with: "
                           "pip install 'hpccoll[torch]'") from error
    dist, threads = torch.distributed, torch.get_num_threads()
    ours.init_process_group()
    torch.set_num_threads(1)
    try:
        groups = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend=GLOO)}
        for nbytes in SIZES if only != STEPS else ():
            for title, call in calls(dist.get_world_size(), nbytes, torch).items():
                yield BesideGloo(title, nbytes, time_call(call, groups, torch))
        for megabytes in MODELS if only != CALLS else ():
            seconds = time_steps(megabytes, groups, torch)
            yield BesideGloo("DDP step", megabytes * 1_000_000, seconds)
    finally:
        torch.set_num_threads(threads)
        dist.destroy_process_group()


def calls(size: int, nbytes: int, torch: Any) -> dict[str, Callable[[Any], None]]:
    """Calls that take a group, by what their users call them."""
    dist = torch.distributed
    count = max(size, nbytes // 4 // size * size)
    whole, part = torch.ones(count), torch.ones(count // size)
    other = torch.ones(count)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    most = dist.ReduceOp.MAX  # the same work as a sum, and the values stay as they are
    return {"all_reduce": lambda group: dist.all_reduce(whole, most, group=group),
            "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
            "all_gather_into_tensor": lambda group: gather(other, part, group=group),
            "reduce_scatter_tensor": lambda group: scatter(part, whole, most, group=group),
            "all_to_all_single": lambda group: dist.all_to_all_single(other, whole, group=group)}


def time_call(call: Callable[[Any], None], groups: dict[str, Any], torch: Any) -> dict[str, float]:
    """Seconds of one call on each group."""
    dist, once = torch.distributed, {}
    times: dict[str, list[float]] = {name: [] for name in groups}
    for name, group in groups.items():
        call(group)
        start = perf_counter()
        call(group)
        once[name] = perf_counter() - start
    longest = slowest(once, torch)
    for _ in range(TURNS):
        for name, group in groups.items():
            repeats = int(max(3, min(200, TURN / longest[name])))
            dist.barrier(groups[OURS])
            start = perf_counter()
            for _ in range(repeats):
                call(group)
            times[name].append((perf_counter() - start) / repeats)
    return slowest({name: statistics.median(seen) for name, seen in times.items()}, torch)


def time_steps(megabytes: int, groups: dict[str, Any], torch: Any) -> dict[str, float]:
    """Seconds of a training step with DDP on each group, and of one without communication."""
    width, layers = MODELS[megabytes]
    kinds = {SILENT: groups[OURS], **groups}
    models = {}
    for name, group in kinds.items():
        torch.manual_seed(0)
        network = torch.nn.Sequential(*(module for _ in range(layers) for module in (
            torch.nn.Linear(width, width), torch.nn.ReLU())))
        models[name] = torch.nn.parallel.DistributedDataParallel(network, process_group=group)
    models[SILENT].register_comm_hook(torch, _silent)
    x = torch.randn(BATCH, width)
    times: dict[str, list[float]] = {name: [] for name in models}
    for step in range(WARM + TIMED):
        for name, model in models.items():
            torch.distributed.barrier(groups[OURS])
            start = perf_counter()
            model.zero_grad()
            model(x).square().mean().backward()
            if step >= WARM:  # buckets are rebuilt after the first
                times[name].append(perf_counter() - start)
    return slowest({name: statistics.median(seen) for name, seen in times.items()}, torch)


def _silent(torch, bucket):  # DDP takes annotations of torch's own types only, or none
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def slowest(times: dict[str, float], torch: Any) -> dict[str, float]:
    """The times of the slowest rank."""
    row = torch.tensor(list(times.values()), dtype=torch.float64)
    torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MAX)
    return dict(zip(times, row.tolist(), strict=True))


@click.command(NAME, cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=OneOf(["calls", "steps"]), help="Leave the others out.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write a record of all times, in seconds; - is standard output.")
def command(only: str | None, json_path: str | None) -> None:
    """Set the process group "hpccoll" beside Gloo's, in the same processes and in turns.

    Calls of torch.distributed from 8 B to 32 MiB, and steps of DistributedDataParallel with 2, 25
    and 100 MB of parameters, of which the time beyond one without communication counts.

    \b
    mpiexec -n 2 python benchmarks/torch_calls.py
    """
    with stoppable() as stopped:
        require_mpi(steps=True)
        comm, found, interrupted = MPI.COMM_WORLD, [], False
        try:
            agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
            with closing(measure(only)) as measuring:
                for each in measuring:
                    found.append(each)
                    # A rank that stops alone would leave the others waiting.
                    interrupted = comm.allreduce(stopped(), MPI.LOR)
                    if interrupted:
                        break
            environment = provenance.record(comm, None)
            if environment is not None:
                environment["command"] = shlex.join(sys.argv)
                if json_path is not None:
                    with open_output(json_path) as file:
                        json.dump(_record(environment, found), file, indent=1)
                if json_path != "-":
                    console, _ = terminal.screen(True)
                    console.print(_table(found))
        except HpccollError as error:
            complain(NAME, str(error))
            sys.exit(BAD_OPTIONS)
        except Exception as error:
            abort(comm, error)
    if interrupted:
        complain(NAME, "interrupted: some cases were not measured")
    sys.exit(INTERRUPTED if interrupted else 0)


def _table(found: list[Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, caption="alone: the step without communication, which the ratio "
                                           "leaves out")
    table.add_column("call", no_wrap=True)
    for title in ("bytes", "hpccoll", "gloo", "alone", "ratio"):
        table.add_column(title, justify="right")
    for each in found:
        silent = each.seconds.get("no communication")
        table.add_row(each.what, short_size_text(each.nbytes),
                      time_text(each.seconds["hpccoll"], 3), time_text(each.seconds["gloo"], 3),
                      "" if silent is None else time_text(silent, 3), f"{each.ratio:.2f}")
    return table


def _record(environment: dict[str, Any], found: list[Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "environment": {**environment, "torch": version("torch")},
            "results": [{"what": each.what, "nbytes": each.nbytes, "seconds": each.seconds,
                         "ratio": each.ratio} for each in found]}


if __name__ == "__main__":
    command()
