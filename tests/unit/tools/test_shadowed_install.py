"""Which installed hpccoll a folder of source hides."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import hpccoll
from hpccoll.tools.shadowed_install import hidden_install


def package(folder, built):
    runtime = folder / "hpccoll" / "runtime" / "execution"
    runtime.mkdir(parents=True)
    if built:
        (runtime / f"_executor{EXTENSION_SUFFIXES[0]}").touch()
    return folder / "hpccoll"


@pytest.mark.parametrize("here, there, found", [
    (False, True, True), (True, True, False), (False, False, False)])
def test_only_what_is_lost_is_told(tmp_path, here, there, found):
    clone, site = package(tmp_path / "clone", here), package(tmp_path / "site", there)
    path = [str(tmp_path / "clone"), str(tmp_path / "nowhere"), str(tmp_path / "site")]
    assert hidden_install(clone, path) == (str(site) if found else "")


def test_a_program_started_in_a_clone(tmp_path):
    """As Python finds it: the folder in which ``python -m`` starts comes before what is installed.

    Both hold this package, by links: the one in the clone without its compiled parts.
    """
    source = Path(hpccoll.__file__).parent
    clone, site = tmp_path / "clone" / "hpccoll", package(tmp_path / "site", True)
    for file in source.rglob("*.py"):
        link = clone / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    done = subprocess.run(
        [sys.executable, "-c",
         "from hpccoll.tools.shadowed_install import hidden_install; print(hidden_install())"],
        cwd=clone.parent, env={"PYTHONPATH": str(site.parent)}, capture_output=True, text=True,
        check=False)
    assert done.stdout.strip() == str(site), done.stderr
