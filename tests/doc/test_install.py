"""``pip install .`` where the compiler does not work: hpccoll is installed, and works."""

import shutil
import sys

import pytest
from launch import ROOT

import hpccoll

#: In a job: it is what was installed that runs, without compiled parts, and the sums are right.
PROGRAM = """\
import sys
# Of an editable installation, which would look in the checkout for the parts that are missing.
sys.meta_path[:] = [one for one in sys.meta_path
                    if "__editable__" not in getattr(one, "__module__", "")]
sys.path.insert(0, sys.argv[1])
import hpccoll, numpy
from mpi4py import MPI
from hpccoll.arrays import half
from hpccoll.runtime.execution import compiled

assert hpccoll.__file__.startswith(sys.argv[1]), hpccoll.__file__
assert not compiled.BUILT and not half.BUILT
comm = hpccoll.Comm(MPI.COMM_WORLD)
for dtype in "f8", "f2":
    mine, total = numpy.ones(9, dtype), numpy.zeros(9, dtype)
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(mine, total)
    assert (total == comm.size).all()
if comm.rank == 0:
    from hpccoll.runtime.execution.built import executor
    from hpccoll.config import Config
    print(hpccoll.__version__, executor(Config()))
"""


@pytest.mark.slow
def test_a_compiler_that_fails_is_no_obstacle(capture, job, tmp_path):
    pytest.importorskip("setuptools")
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "hpccoll", source / "hpccoll",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    status, output = capture(
        "env", "CC=false", sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
        "--no-index", "--no-build-isolation", "--target", target, source, cwd=source)
    assert status == 0, output
    assert not list(target.rglob("*.so")) and (target / "hpccoll" / "__init__.py").exists()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    status, output = job(2, sys.executable, program, target, cwd=tmp_path)
    assert status == 0 and f"{hpccoll.__version__} python" in output, output
