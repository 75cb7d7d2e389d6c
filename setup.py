"""The compiled parts, which are optional: without a C compiler everything else is installed.

All other metadata is in setup.cfg.
"""

from glob import glob

from setuptools import Extension, setup

#: The event loop of the simulator: standard library only. Products and sums are not fused, so that
#: its bits are those of the loop in Python on every processor.
EVENTS = Extension("hpccoll.simulator._events", ["hpccoll/simulator/_events.c"], optional=True,
                   extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off",
                                       "-fvisibility=hidden"])


def extensions():
    """The executor and the kernels for 16-bit floats, where NumPy's headers are; the event loop."""
    try:
        import numpy
    except ImportError:
        return [EVENTS]
    kernel = "hpccoll/arrays/_half.h"
    with_numpy = [
        ("hpccoll.arrays._half", ["hpccoll/arrays/_half.c"], [kernel], []),
        ("hpccoll.runtime.execution._executor", sorted(glob("hpccoll/runtime/execution/_*.c")),
         [kernel, *sorted(glob("hpccoll/runtime/execution/_*.h"))],
         ["-pthread"])]
    return [EVENTS] + [
        Extension(name, sources, depends=depends, optional=True,
                  include_dirs=[numpy.get_include(), "hpccoll/arrays"],
                  extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
                  extra_link_args=linked)
        for name, sources, depends, linked in with_numpy]


setup(ext_modules=extensions())
