"""Measure steps of training on several hosts, and set the simulation beside them.

As a program, below ``hosts.py``: every rank runs it; rank 0 prints a line for each point, and
writes the file that is named. The backward pass is emulated by sleep, so that it costs no
processor; the machine and the schemes' rates are measured first, in the same job.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.tools.calibrate import calibrate
from hpccoll.training.exchange import Exchange

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from step_simulator.collective_times import CollectiveTimes
from step_simulator.measure import compress_rate
from step_simulator.model import from_profile
from step_simulator.simulation import StepPlan, forecast

#: Arrays of a model whose gradients become ready one by one, the last one first.
ARRAYS, SHAPE, BACKWARD = 32, (256, 512), 0.2
BUCKETS = (1 << 19, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20)
SCHEMES = ("none", "bf16", "onebit", "powersgd:rank=4,dense_steps=0")
WARM, TIMED = 2, 5


def measured(comm, arrays, scheme, bucket_bytes, algorithm):
    """The median and the shortest step, and the profile of the last one."""
    with Exchange(comm, arrays, compress=scheme, bucket_bytes=bucket_bytes,
                  first_bucket_bytes=min(bucket_bytes, 1 << 20), algorithm=algorithm) as exchange:
        seconds = []
        for _ in range(WARM + TIMED):
            comm.Barrier()
            begun = time.perf_counter()
            exchange.begin()
            for number, index in enumerate(reversed(range(len(arrays))), 1):
                rest = begun + BACKWARD * number / len(arrays) - time.perf_counter()
                time.sleep(max(rest, 0))
                exchange.ready(index, arrays[index])
            exchange.wait()
            seconds.append(time.perf_counter() - begun)
        profile = exchange.profile()
    took = [max(each) for each in zip(*comm.allgather(seconds[WARM:]))]
    return statistics.median(took), min(took), comm.bcast(profile)


def main():
    """Measure, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="auto", help="of the allreduce")
    parser.add_argument("--schemes", default=";".join(SCHEMES))
    parser.add_argument("--json", help="file for the points")
    given = parser.parse_args()
    comm = hpccoll.Comm(MPI.COMM_WORLD)
    arrays = [numpy.random.default_rng(i).standard_normal(SHAPE, "f4") for i in range(ARRAYS)]
    machine = comm.bcast(calibrate(comm, "hosts", force=True))
    times = CollectiveTimes(machine, comm.layout, "" if given.algorithm == "auto" else
                            f"allreduce={given.algorithm}")
    points = []
    for scheme in given.schemes.split(";"):
        for bucket_bytes in BUCKETS:
            shapes = [SHAPE] * (bucket_bytes // arrays[0].nbytes)
            rate = 0.0 if scheme == "none" else compress_rate(comm, scheme, shapes)
            took, least, profile = measured(comm, arrays, scheme, bucket_bytes, given.algorithm)
            plan = StepPlan(bucket_bytes, min(bucket_bytes, 1 << 20), scheme, compress_rate=rate)
            said = forecast(from_profile(profile), plan, times)
            points.append({"layout": str(comm.layout), "compress": scheme, "rate": rate,
                           "bucket_bytes": bucket_bytes, "measured": took,
                           "shortest": least, "simulated": said.seconds, "algorithms": {
                               name: list(each) for name, each in said.algorithms.items()}})
            if comm.rank == 0:
                print(f"{comm.layout} {scheme:30} {bucket_bytes >> 10:6} KiB  measured "
                      f"{took * 1e3:6.1f} ms, at least {least * 1e3:6.1f}  simulated "
                      f"{said.seconds * 1e3:6.1f} ms  {said.seconds / took:.2f}", flush=True)
    if comm.rank == 0 and given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.name, "points": points}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
