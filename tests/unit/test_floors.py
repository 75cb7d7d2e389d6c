"""The house rules that a program can check: floors, sizes, names, what an import starts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hpccoll"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: First part of a module's name below hpccoll -> its floor (docs/design.md).
FLOORS = {
    "errors": 0, "files": 0, "ops": 0, "collective": 0, "topology": 0, "schedule": 0,
    "algorithms": 1, "passes": 1, "lower": 1, "verify": 1, "explain": 1, "jobs": 1, "figure": 1,
    "simulate": 2,
    "config": 3, "buffers": 3, "device": 3, "reduce": 3, "transport": 3, "discover": 3, "pace": 3,
    "levels": 3, "half": 3, "derived": 3,
    "private": 3, "mpi_errors": 3,
    "plan": 4, "run": 4, "shapes": 4,
    "tune": 5, "calls": 5, "engine": 5, "blocking": 5, "nonblocking": 5, "persistent": 5,
    "request": 5, "flight": 5, "life": 5, "recall": 5, "objects": 5, "post": 5, "parcel": 5,
    "comm": 5,
    "testing": 6, "bench": 6, "doctor": 6, "topo": 6, "cli": 6, "__main__": 6, "__init__": 6,
}
#: Floor -> what its modules may import beside the standard library. CuPy and matplotlib are
#: never on the list: they are imported when they are needed.
OUTSIDE = {0: (), 1: (), 2: ("numpy",), **dict.fromkeys((3, 4, 5), ("numpy", "mpi4py")),
           6: ("numpy", "mpi4py", "click", "rich")}
#: Longest module allowed.
CEILING = 500


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path):
    """Modules imported at module level, below hpccoll and outside."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "hpccoll":
                yield from (f"hpccoll.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_keeps_the_house_rules(path):
    floor = FLOORS[name_of(path)]
    for module in imported(path):
        parts = module.split(".")
        if parts[0] == "hpccoll":
            # What is no module, such as hpccoll.__version__, comes from the package itself.
            below = FLOORS.get(parts[1] if len(parts) > 1 else "__init__", FLOORS["__init__"])
            assert below <= floor, f"{module} is on floor {below}, above floor {floor}"
        else:
            assert parts[0] in {*sys.stdlib_module_names, *OUTSIDE[floor]}, (
                f"{module} is not for floor {floor}")
    text = path.read_text()
    assert text.count("\n") <= CEILING
    assert ast.get_docstring(ast.parse(text))
    assert path.stem not in ("utils", "helpers", "common", "misc")
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text)))


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=False)


def test_importing_starts_neither_mpi_nor_a_gpu_nor_numpy():
    done = run("import sys, hpccoll; "
               "sys.exit(' '.join({'numpy', 'mpi4py', 'cupy', 'matplotlib', 'ml_dtypes'}"
               " & set(sys.modules)) or None)")
    assert done.returncode == 0, done.stderr


def test_lower_floors_work_without_numpy_and_mpi4py():
    done = run("import sys; sys.modules.update(numpy=None, mpi4py=None, cupy=None)\n"
               "import hpccoll\n"
               "from hpccoll.explain import as_text\n"
               "s = hpccoll.schedule('allreduce', 'rails', topology='2x2')\n"
               "hpccoll.verify(s); as_text(s)")
    assert done.returncode == 0, done.stderr


def test_public_names():
    import hpccoll
    assert set(hpccoll.__all__) <= set(dir(hpccoll))
    for name in hpccoll.__all__:
        assert getattr(hpccoll, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Com'"):
        hpccoll.Com
