"""Names of processors and MPI libraries."""

import builtins
import io
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.machine import identity


@pytest.mark.parametrize("text, expected", [
    ("Open MPI v5.0.11, package: Open MPI user@host", "Open MPI 5.0.11"),
    ("MPICH Version: 5.0.2 MPICH Release date: Fri", "MPICH 5.0.2"),
    ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel MPI 2021.18"),
    ("MVAPICH Version : 4.0 MVAPICH", "MVAPICH 4.0"), ("Something else", "Something else")])
def test_library_names(text, expected):
    assert identity.library_name(text) == expected


def test_this_process_has_an_mpi_library():
    version = identity.library_version()
    assert version == " ".join(version.split()) and "\0" not in version
    assert identity.library_name() == identity.library_name(version)
    assert identity.thread_level() in ("single", "funneled", "serialized", "multiple")


def test_the_name_of_a_recorded_library_starts_no_mpi():
    done = subprocess.run([sys.executable, "-c", """
import sys
sys.modules["mpi4py"] = None
from hpccoll.machine.identity import library_name
print(library_name("MPICH Version: 5.0.2"))
"""], cwd=Path(identity.__file__).parents[2], capture_output=True, text=True)
    assert done.stdout == "MPICH 5.0.2\n", done.stderr


@pytest.mark.parametrize("text, expected", [
    ("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags: fpu\n", "Fast CPU @ 3 GHz"),
    ("processor\t: 0\nBogoMIPS\t: 50.00\n", "arm"), (None, "arm")])
def test_the_model_of_the_processor(monkeypatch, text, expected):
    """Other systems than Linux on x86 have no model name, or no such file."""
    def opened(path, **how):
        if text is None:
            raise FileNotFoundError(path)
        return io.StringIO(text)
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm")
    assert identity.processor() == expected
