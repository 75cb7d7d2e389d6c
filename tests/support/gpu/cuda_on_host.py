"""CUDA C on the processor: kernels whose threads do not talk to each other, compiled as C++.

    kernel = compile_kernel(source, "reduce", ("-DELEMENT=float", "-DOPERATOR=sum"))
    kernel(blocks, threads, [numpy.int64(address), ...])

The source is the one that a device gets. Around it come the few words that C++ lacks, and loops
over blocks and threads, one thread after the other. What a compiler made is kept for the process.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy

#: Compilers of C++, the first that is there.
COMPILERS = ("c++", "g++", "clang++")
#: As for a device: no product fused with a sum, no rearrangement, and memory may be read
#: as another type.
FLAGS = ("-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing",
         "-Wno-unknown-pragmas")
#: What a source may use without saying where it is from.
BEFORE = """
#include <cstddef>
#include <math.h>
#include <utility>
#define __global__
#define __device__
struct Place { unsigned x, y, z; };
static thread_local Place blockIdx, threadIdx, blockDim, gridDim;
"""
#: What runs a kernel whose arguments are at addresses, as ``cuLaunchKernel`` takes them.
AFTER = """
template <class... Types, std::size_t... Numbers>
static void call(void (*kernel)(Types...), void **arguments, std::index_sequence<Numbers...>)
{
    kernel(*static_cast<Types *>(arguments[Numbers])...);
}
template <class... Types>
static void launch_all(void (*kernel)(Types...), unsigned blocks, unsigned threads,
                       void **arguments)
{
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            call(kernel, arguments, std::index_sequence_for<Types...>());
}
extern "C" void launch(unsigned blocks, unsigned threads, void **arguments)
{
    launch_all(KERNEL, blocks, threads, arguments);
}
"""


def compiler() -> str | None:
    """Find a compiler of C++."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


@functools.cache
def compile_kernel(source: str, name: str, options: tuple[str, ...]
                   ) -> Callable[[int, int, Sequence[numpy.generic]], None]:
    """Compile a kernel; the result takes blocks, threads of each, and arguments."""
    program = compiler()
    if program is None:
        raise RuntimeError(f"no compiler of C++ for kernels: none of {', '.join(COMPILERS)}")
    defined = [option for option in options if option.startswith("-D")]
    key = hashlib.sha256("\0".join([source, name, *defined]).encode()).hexdigest()[:16]
    folder = _folder()
    text, library = folder / f"{key}.cpp", folder / f"{key}.so"
    text.write_text(BEFORE + source + AFTER)
    done = subprocess.run([program, *FLAGS, *defined, f"-DKERNEL={name}", text, "-o", library],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} refuses a kernel:\n{done.stderr}")
    launch = ctypes.CDLL(str(library)).launch
    launch.restype = None

    def run(blocks: int, threads: int, arguments: Sequence[numpy.generic]) -> None:
        numbers = [numpy.asarray(one) for one in arguments]
        places = (ctypes.c_void_p * len(numbers))(*(one.ctypes.data for one in numbers))
        launch(ctypes.c_uint(blocks), ctypes.c_uint(threads), places)

    return run


@functools.cache
def _folder() -> Path:
    """A folder for what is compiled, until the process ends."""
    made = tempfile.mkdtemp(prefix="hpccoll-kernels-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
