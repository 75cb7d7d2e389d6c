"""Our process group of PyTorch beside Gloo's: calls of ``torch.distributed``, and steps of DDP.

Both groups are in the same processes, and take turns, so that what else runs on the machine hits
both. Times are medians, of the slowest rank. What DDP costs without communication is measured with
a hook that sends nothing; the rest of a step is the communication that is not hidden.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, NamedTuple

from hpccoll.errors import HpccollError

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
        raise HpccollError(f"bench torch needs PyTorch: {error}; install it with: "
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
            yield BesideGloo("DDP step", megabytes * 1_000_000, time_steps(megabytes, groups, torch))
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
