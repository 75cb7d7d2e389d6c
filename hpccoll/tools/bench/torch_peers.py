"""Our process group of PyTorch beside Gloo's: calls of ``torch.distributed``, and steps of DDP.

    mpiexec -n 2 python -m hpccoll.tools.bench.torch_peers [--json FILE]

Both groups are in the same processes, and take turns, so that what else runs on the machine hits
both. Times are medians, of the slowest rank. What DDP costs without communication is measured with
a hook that sends nothing; the rest of a step is the communication that is not hidden.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpccoll.units import short_size_text

OURS, GLOO, SILENT = "hpccoll", "gloo", "no communication"
#: Bytes of a rank's tensor, the greater one of a call.
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20)
#: DDP: megabytes of parameters, and the widths of the layers that make them.
MODELS = {2: (350, 4), 25: (790, 10), 100: (1580, 10)}
BATCH, TURNS, STEPS = 64, 7, 20
#: Seconds that one turn of a call takes, about.
TURN = 0.02


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
        start = time.perf_counter()
        call(group)
        once[name] = time.perf_counter() - start
    longest = slowest(once, torch)
    for _ in range(TURNS):
        for name, group in groups.items():
            repeats = int(max(3, min(200, TURN / longest[name])))
            dist.barrier(groups[OURS])
            start = time.perf_counter()
            for _ in range(repeats):
                call(group)
            times[name].append((time.perf_counter() - start) / repeats)
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
    for step in range(STEPS):
        for name, model in models.items():
            torch.distributed.barrier(groups[OURS])
            start = time.perf_counter()
            model.zero_grad()
            model(x).square().mean().backward()
            if step > 2:  # buckets are rebuilt after the first
                times[name].append(time.perf_counter() - start)
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


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the times to this file, in seconds")
    parser.add_argument("--only", choices=("calls", "steps"), help="leave the others out")
    options = parser.parse_args()
    torch, ours = (importlib.import_module(name) for name in ("torch", "hpccoll.torch"))
    ours.init_process_group()
    torch.set_num_threads(1)
    dist = torch.distributed
    groups = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend=GLOO)}
    rank, size, rows = dist.get_rank(), dist.get_world_size(), []

    def note(title: str, nbytes: int, times: dict[str, float]) -> None:
        rows.append({"what": title, "nbytes": nbytes, "ranks": size, **times})
        base = times.get(SILENT, 0.0)
        ratio = (times[GLOO] - base) / max(times[OURS] - base, 1e-9)
        if rank == 0:
            print(f"{title:24} {short_size_text(nbytes):>9}  "
                  + "  ".join(f"{name} {1e3 * value:9.3f} ms" for name, value in times.items())
                  + f"  {ratio:6.2f} x", flush=True)

    for nbytes in SIZES if options.only != "steps" else ():
        for title, call in calls(size, nbytes, torch).items():
            note(title, nbytes, time_call(call, groups, torch))
    for megabytes in MODELS if options.only != "calls" else ():
        note("DDP step", megabytes * 1_000_000, time_steps(megabytes, groups, torch))
    dist.destroy_process_group()
    if options.json and rank == 0:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
