"""The compiled parts, which are optional: without a C compiler everything else is installed.

All other metadata is in setup.cfg.
"""

from setuptools import Extension, setup


def extensions():
    """The executor and the kernels for 16-bit floats; none where NumPy's headers are missing."""
    try:
        import numpy
    except ImportError:
        return []
    kernel = "hpccoll/arrays/_half.h"
    return [Extension(name, sources, depends=depends, optional=True,
                      include_dirs=[numpy.get_include(), "hpccoll/arrays"],
                      extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"])
            for name, sources, depends in (
                ("hpccoll.arrays._half", ["hpccoll/arrays/_half.c"], [kernel]),
                ("hpccoll.runtime._tape",
                 [f"hpccoll/runtime/_{part}.c" for part in
                  ("tape", "running", "recognition", "requests", "numbers", "noted", "entrance",
                   "watched")],
                 ["hpccoll/runtime/_tape.h", kernel]))]


setup(ext_modules=extensions())
