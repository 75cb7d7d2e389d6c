"""The compiled executor, which is optional: without a C compiler everything else is installed.

All other metadata is in setup.cfg.
"""

from setuptools import Extension, setup


def extensions():
    """The one extension; none where NumPy's headers are missing."""
    try:
        import numpy
    except ImportError:
        return []
    return [Extension("hpccoll.runtime._tape",
                      [f"hpccoll/runtime/_{part}.c" for part in
                       ("tape", "recognition", "requests", "numbers")],
                      depends=["hpccoll/runtime/_tape.h"], optional=True,
                      include_dirs=[numpy.get_include()],
                      extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"])]


setup(ext_modules=extensions())
