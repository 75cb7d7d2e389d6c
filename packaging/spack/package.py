# hpccoll for Spack, on any of its MPIs: mpi4py is built for it.
#
#   spack repo create mine && spack repo add mine     and this file as py_hpccoll/package.py there
#   spack develop --path /path/to/hpccoll py-hpccoll@main
#   spack install py-hpccoll@main ^cray-mpich
#
# There is no archive of a release to fetch yet, so versions have no sums, and the source tree is
# named by spack develop.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpccoll(PythonPackage):
    """Collective operations for supercomputer jobs, proved before they run."""

    license("BSD-3-Clause")

    version("main")
    version("0.1.0")

    variant("plot", default=True, description="Pictures, by matplotlib")
    variant("bf16", default=False, description="Arrays of bfloat16, by ml_dtypes")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-click@8.0:", type=("build", "run"))
    depends_on("py-rich", type=("build", "run"))
    depends_on("py-matplotlib", type=("build", "run"), when="+plot")
    depends_on("py-ml-dtypes", type=("build", "run"), when="+bf16")
