"""What must hold of arrays on GPUs, tried without one. Writes docs/internal/gpu-checks.md.

    python tests/without_gpu.py            try all of it, and print the table
    python tests/without_gpu.py --write    write docs/data/gpu/without.json and the page, too
    python tests/without_gpu.py --check    exit status 1 if the page has not what the file says

``make cuda`` does the second, in an environment with CuPy, NVRTC and NCCL, where everything is
tried; what needs a package that is missing is said to be so. Exit status: 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import product
from pathlib import Path

import numpy

from hpccoll.calls import memory
from hpccoll.ir.operators import OPERATORS
from support.gpu import cupy_interface as interface
from support.gpu import device_world, nccl_world
from support.gpu.kernel_types import types_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internal" / "gpu-checks.md"
DATA = ROOT / "docs" / "data" / "gpu" / "without.json"
BLOCK = re.compile(r"(<!-- without a gpu -->\n)(.*?)(<!-- filled -->)", re.DOTALL)
SIZES = range(1, 9)
#: Packages that decide what is tried.
PACKAGES = ("cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-nccl-cu12", "numpy", "ml_dtypes")
#: Nanoseconds that the question may take.
MOST_NS = 30
USES = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupy_backends"):
            raise SystemExit(f"{name} is looked for")
sys.meta_path.insert(0, Finder())
import numpy, hpccoll
from mpi4py import MPI
comm = hpccoll.Comm(MPI.COMM_WORLD)
x, n = numpy.ones(8), 0
for name in ("Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Scan", "Reduce",
             "Gather", "Scatter"):
    for begin in (name, "I" + name.lower()):
        request = getattr(comm, begin)(x, numpy.empty(8))
        request is None or request.Wait()
        n += 1
comm.explain("allreduce", 8), comm.layout, comm.allreduce(1), comm.empty(8)
print(n)
"""


class Failed(Exception):
    """What must hold does not."""


class Missing(Exception):
    """A package that a check needs is not installed."""


def ours() -> str:
    """Our collectives, by MPI on device memory and staged."""
    names = nccl_world.DTYPES
    dtypes = [nccl_world.dtype_of(name) for name in dict.fromkeys(
        (*names, *device_world.DTYPES, "i2", "u2", "c16"))]
    tried = 0
    for name, direct, size, dtype in product(device_world.CALLS, (True, False), SIZES, dtypes):
        drawn = device_world.RandomCall(size, name=name, size=size, dtype=dtype, direct=direct)
        if found := device_world.make(drawn):
            raise Failed(f"{name} of {size} ranks in {dtype}: {found}")
        tried += 1
    return (f"{tried:,} calls exact: {len(device_world.CALLS)} kinds, {len(dtypes)} types, "
            "staged and direct")


def nccl() -> str:
    """Collectives by NCCL."""
    tried = 0
    for size in SIZES:
        _, installing = nccl_world.world(size)
        with installing as cupy:
            for method, name, in_place in product(nccl_world.METHODS, nccl_world.DTYPES,
                                                  (False, True)):
                ranks = nccl_world.NcclRanks(cupy, size)
                if found := nccl_world.make(ranks, method, name, in_place=in_place):
                    raise Failed(f"{method} of {size} ranks in {name}: ranks {found}")
                ranks.free()
                tried += 1
    return (f"{tried:,} calls exact: {len(nccl_world.METHODS)} methods, {len(nccl_world.DTYPES)} "
            "types, in place or not")


def random_calls(number: int = 10_000) -> str:
    """Calls with work on other streams before and after, on other devices, in other threads."""
    for seed in range(number):
        if found := device_world.make(device_world.RandomCall(seed)):
            raise Failed(f"seed {seed}: {found}")
    return f"{number:,} exact"


def signatures() -> str:
    """All that is called of CuPy, its NCCL and its runtime, against the package itself."""
    known = {*interface.doubled(), *interface.ELSEWHERE}
    if strange := interface.used() - known:
        raise Failed(f"not compared: {', '.join(sorted(strange))}")
    try:
        said = interface.record()
    except ImportError as error:
        raise Missing("CuPy") from error
    for name, mine in interface.doubled().items():
        if mine is not None and (found := interface.misfit(mine, said["names"][name])):
            raise Failed(f"{name} {found}")
    return f"all {len(interface.used())} names, {said['package']}"


def machine_code() -> str:
    """Kernels for three GPUs."""
    try:
        import cupy_backends.cuda.libs.nvrtc  # noqa: F401
    except ImportError as error:
        raise Missing("CuPy and NVRTC") from error
    _tests("tests/gpu/test_kernels.py")
    return f"{3 * sum(len(types_of(name)) for name in OPERATORS)} compiled"


def on_the_processor() -> str:
    """Kernels on the processor."""
    return f"{_tests('tests/unit/cuda/test_kernels.py')} tests pass"


def rules() -> str:
    """Broken variants, and the double's rules."""
    variants = _tests("tests/unit/cuda/test_device_order.py",
                      "tests/unit/cuda/test_nccl_group.py")
    return f"{variants} tests pass; {_tests('tests/gpu/test_rules.py')} of the rules"


def no_cupy() -> str:
    """A program without GPUs."""
    ran = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, check=False,
                         env={**os.environ, "HPCCOLL_TUNING": "off"})
    if ran.returncode:
        raise Failed(ran.stderr.strip().splitlines()[-1])
    return f"{ran.stdout.split()[-1]} methods used, none imports it"


def question() -> str:
    """What a NumPy array costs, as it is asked where arguments are resolved, and passed on."""
    each = {"resolved": _difference("isinstance(x, ndarray)", "pass"),
            "passed on": _difference("any_staged(ten)", "any_staged(())") / 10}
    text = ", ".join(f"{ns:.0f} ns where an argument is {where}" for where, ns in each.items())
    if max(each.values()) > MOST_NS:
        raise Failed(text)
    return text


def _difference(statement: str, without: str) -> float:
    """Nanoseconds that a statement takes longer than another one: the lowest of many runs."""
    array = numpy.ones(8)
    names = {"x": array, "ten": (array,) * 10, "ndarray": numpy.ndarray,
             "any_staged": memory.any_staged}
    least, whole = (min(timeit.repeat(one, globals=names, number=1000, repeat=800)) / 1000 * 1e9
                    for one in (without, statement))
    return whole - least


def _tests(*paths: str) -> int:
    """Run tests; how many passed."""
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
                         cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", ran.stdout)
    if ran.returncode or passed is None:
        raise Failed(ran.stdout.strip().splitlines()[-1])
    return int(passed[1])


#: What must hold, and what tries it.
CHECKS: dict[str, Callable[[], str]] = {
    "our collectives, on 1 to 8 ranks": ours,
    "collectives by NCCL, on 1 to 8 ranks": nccl,
    "random calls, with work queued before and after on other streams": random_calls,
    "each wrong order of streams, events and pinned memory is caught": rules,
    "calls of CuPy, of NCCL in it, of the runtime: as the package says": signatures,
    "each kernel is machine code for sm_70, sm_80 and sm_90": machine_code,
    "each kernel, run by the processor, has the bits of the host's": on_the_processor,
    "a program without GPUs never imports CuPy": no_cupy,
    f"'is this device memory' costs NumPy arrays at most {MOST_NS} ns": question,
}


def tried() -> Iterator[dict[str, str | float]]:
    """Try all checks, and tell each when it is over."""
    for what, check in CHECKS.items():
        begun, how = time.monotonic(), "holds"
        try:
            result = check()
        except Missing as error:
            result, how = f"needs {error}: make cuda", "not tried"
        except Failed as error:
            result, how = str(error), "FAILS"
        seconds = round(time.monotonic() - begun, 1)
        print(f"{how:9} {what}: {result} ({seconds} s)", flush=True)
        yield {"what": what, "how": how, "result": result, "seconds": seconds}


def versions() -> str:
    """The packages that are installed."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return f"Python {platform.python_version()}, {', '.join(found)}"


def filled(page: str, record: dict) -> str:
    """The page with the table of a record."""
    rows = "".join(f"| {row['what']} | {row['how']} | {row['result']} | {row['seconds']:.0f} s |\n"
                   for row in record["checks"])
    text = (f"| must hold | | tried | took |\n|---|---|---|---|\n{rows}\n"
            f"{record['day']}, no GPU; {record['versions']}.\n")
    return BLOCK.sub(lambda found: found[1] + text + found[3], page)


def main() -> int:
    """Try, print and write what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if asked.check:
        return page != filled(page, json.loads(DATA.read_text(encoding="utf-8")))
    record = {"day": time.strftime("%Y-%m-%d"), "versions": versions(), "checks": list(tried())}
    if asked.write:
        DATA.parent.mkdir(parents=True, exist_ok=True)
        DATA.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(filled(page, record), encoding="utf-8")
    return any(row["how"] == "FAILS" for row in record["checks"])


if __name__ == "__main__":
    sys.exit(main())
