"""The house rules that a program can check: rooms, circles, sizes, names, what an import starts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hpccoll
import hpccoll.cuda
from support.folded import folded

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "hpccoll", ROOT / "tests"
SUPPORT = TESTS / "support"
TREES = {path: ast.parse(path.read_text())
         for folder in (PACKAGE, SUPPORT) for path in sorted(folder.rglob("*.py"))}
C_FILES = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".c", ".h")]
#: The rows of rooms in the package's docstring: names, two spaces, what they are.
ROWS = [row.split() for row in re.findall(r"^    (\S+(?: \S+)*)  +\S", hpccoll.__doc__, re.M)]
ROOMS = [room for row in ROWS for room in row]
#: Rooms that are not built yet, whose place is known.
TO_COME: set[str] = set()
#: Rooms made from the public face alone: what each may use of the package beside the package's own
#: names and the first row.
FACE = {"hpccoll", *ROWS[0], "config"}
ON_THE_FACE = {"training": FACE | {"measure"},
               **dict.fromkeys(("torch", "jax"), FACE | {"training"}),
               "keras": FACE | {"training", "jax"}}
#: What they may use beside: shared memory and tables have one maker, work one kind of queue, events
#: one ring, and waits one kind of timer.
SHARED = {"hpccoll.transport.shm.mapping", "hpccoll.runtime.progress.engine",
          "hpccoll.runtime.progress.task_queue", "hpccoll.runtime.progress.waiting",
          "hpccoll.runtime.events.ring", "hpccoll.explain.columns"}
#: Rooms that no other room uses, programs excepted: whoever runs collectives needs none of them.
APART, MAY_USE_THEM = {"simulator", "testing"}, {"hpccoll", "tools", "cli"}
#: What a row may import at the top of a module, beside the standard library ...
OUTSIDE = [set(), set(), *[{"numpy", "mpi4py"}] * 3, {"numpy", "mpi4py", "click", "rich"}]
MORE = {"hpccoll.errors.mpi": {"mpi4py"}, "hpccoll.errors.agreement": {"numpy", "mpi4py"}}
#: ... or rooms that are a framework's face: whoever imports them has it.
FRAMEWORK = {"torch": {"torch"}, "jax": {"jax", "optax"}, "keras": {"keras"}}
#: ... and what may be imported inside functions, where somebody asks for it.
ON_DEMAND = {"cupy": {"cuda", "training"},
             "ml_dtypes": {"arrays", "measure", "training", "torch", "jax"},
             "matplotlib": {"explain", "simulator", "tools", "training"}, "torch": {"tools"},
             "tensorflow": {"keras"}}
#: Longest module, most names at the top of the package.
CEILING, MOST_NAMES = 450, 29
#: Longest file of tests.
TEST_CEILING = 600


def module_of(path):
    parts = path.relative_to(TESTS if SUPPORT in path.parents else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


ALL = {module_of(path): path for path in TREES}
MODULES = {module: path for module, path in ALL.items() if path.is_relative_to(PACKAGE)}


def room_of(module):
    """The room of a module below ``hpccoll``; the package itself stands behind ``comm``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "hpccoll"


def imports(path, everywhere=True, types=False):
    """What a module imports, inside functions too; only with ``types`` what type checkers see."""
    tree = TREES[path]
    skipped = {id(node) for branch in ast.walk(tree) if isinstance(branch, ast.If) and not types
               and getattr(branch.test, "id", "") == "TYPE_CHECKING"
               for body in branch.body for node in ast.walk(body)}
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide rooms"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in ALL else node.module


def order(module):
    room = room_of(module)
    if module in ("hpccoll.__main__",):
        return len(ROOMS)
    return ROOMS.index("comm") + 0.5 if room == "hpccoll" else ROOMS.index(room)


def test_the_list_of_rooms_is_the_listing_of_the_package():
    names = {path.stem for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    names -= {"__init__", "__main__", "py"}
    assert names <= set(ROOMS) and set(ROOMS) - names <= TO_COME
    assert len(names) <= MOST_NAMES
    assert len(ROOMS) == len(set(ROOMS))


@folded("module", MODULES)
def test_a_module_keeps_the_house_rules(module):
    path = MODULES[module]
    for name in imports(path):
        if name.split(".")[0] == "hpccoll":
            if room_of(name) != room_of(module):
                assert order(name) < order(module), f"{name} does not stand before {module}"
                assert room_of(name) not in APART or room_of(module) in MAY_USE_THEM, name
            if room_of(module) in ON_THE_FACE and name not in SHARED:
                assert room_of(name) in {room_of(module)} | ON_THE_FACE[room_of(module)]
    text = path.read_text()
    assert text.count("\n") <= CEILING
    assert ast.get_docstring(TREES[path])
    assert path.stem not in ("utils", "helpers", "common", "misc")
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(TREES[path]))


@folded("module", [module for module in ALL if module not in MODULES])
def test_the_support_of_tests_keeps_the_rules_of_the_package(module):
    assert ast.get_docstring(TREES[ALL[module]])
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(TREES[ALL[module]]))
    always = {"hpccoll", "support", "numpy", "mpi4py", "pytest", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imports(ALL[module], everywhere=False)} <= always
    assert {name.split(".")[0] for name in imports(ALL[module])} <= always | {"cupy", "ml_dtypes"}


@folded("module", MODULES)
def test_what_a_module_imports_from_outside(module):
    row = next((number for number, rooms in enumerate(ROWS) if room_of(module) in rooms), 4)
    always = OUTSIDE[row] | MORE.get(module, set()) | {"hpccoll", *sys.stdlib_module_names}
    always |= FRAMEWORK.get(room_of(module), set())
    for name in imports(MODULES[module], everywhere=False):
        assert name.split(".")[0] in always
    for name in imports(MODULES[module]):
        first = name.split(".")[0]
        assert first in always or room_of(module) in ON_DEMAND.get(first, ())


def test_no_files_import_each_other_in_a_circle():
    graph = {module: {name for name in imports(path) if name in ALL}
             for module, path in ALL.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_no_c_files_use_each_other_in_a_circle():
    """A source and its header are one file; it uses what it includes."""
    graph = defaultdict(set)
    for path in C_FILES:
        graph[path.stem] |= set(re.findall(r'^#include "(\w+)\.h"', path.read_text(), re.M))
        graph[path.stem].discard(path.stem)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
    assert {"_module", "_running"} <= set(graph)


def test_a_c_file_defines_what_its_header_declares_and_declares_nothing_else():
    defined = re.compile(r"^(?!static|typedef)\w[\w *]*?(\w+)(?:\([^;{}]*\)\s*\{| = \{|;)", re.M)
    headers = {path: set(re.findall(r"(\w+)(?:\([^;{}]*\))?(?=[,;])", "".join(
        re.findall(r"^(?!static|typedef|struct)\w[^;{}#]*;", path.read_text(), re.M))))
        for path in C_FILES if path.suffix == ".h"}
    for header, names in headers.items():
        source = header.with_suffix(".c")
        assert names <= set(defined.findall(source.read_text()) if source.exists() else ()), header
    others = r"^(extern\b|(?!static|struct|typedef)\w[^:;{}=]*\);)"
    for path in set(C_FILES) - set(headers):
        assert not re.search(others, path.read_text(), re.M), path


def in_circles(graph):
    """The modules of a graph of imports that import themselves, by way of others."""
    reached = {module: {*names} & {*graph} - {module} for module, names in graph.items()}
    for between in graph:
        for names in reached.values():
            if between in names:
                names |= reached[between]
    return {module for module in graph if module in reached[module]}


def test_no_modules_of_a_room_import_each_other_in_a_circle_for_types_either():
    assert in_circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"b"}, "e": {"a"}, "f": {"f"}
                       }) == {*"abcd"}
    rooms = defaultdict(dict)
    for module, path in MODULES.items():
        rooms[room_of(module)][module] = set(imports(path, types=True))
    found = {room: in_circles(graph) for room, graph in rooms.items()}
    assert not any(found.values()), found


#: Objects that a communicator consists of; each gets what it needs when it is made.
PARTS = {"context", "guard", "ranks", "library", "endpoint", "remote", "node"}


def set_from_outside(tree):
    """The lines that assign to an attribute of another object of the communicator."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [
            node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []
        for target in (each for one in targets for each in ast.walk(one)):
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                owner = target.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name.lstrip("_") in PARTS:
                    yield target.lineno


def test_no_part_of_a_communicator_is_completed_by_another():
    wrong = "context.guard = one\nself.context.timeouts, other = two\nself.guard = three"
    assert list(set_from_outside(ast.parse(wrong))) == [1, 2]
    assert not {module: lines for module, path in MODULES.items()
                if room_of(module) in ("comm", "guard", "runtime", "cuda")
                and (lines := list(set_from_outside(TREES[path])))}


def test_design_shows_the_rooms_of_the_docstring():
    block = re.search(r"^    errors (?:.*\n)+?(?=\n)", hpccoll.__doc__, re.M).group()
    rooms = re.sub("^    ", "", block, flags=re.M)
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert f"```text\n{rooms}```\n" in design
    table = re.findall(r"^\| (`.*?`) \|", design, re.M)
    assert [room for row in table for room in re.findall(r"`(\w+)`", row)] == ROOMS


@folded("path", sorted((TESTS / "unit").rglob("test_*.py")))
def test_unit_tests_mirror_the_package(path):
    if path == Path(__file__).resolve():
        return  # the package's own
    inside = path.parent.relative_to(TESTS / "unit")
    place = (TESTS if inside.parts[:1] == ("support",) else PACKAGE) / inside
    names = {place.name, *(module.stem for module in place.glob("*.py"))}
    subject = path.stem.removeprefix("test_")
    assert any(subject == name or subject.startswith(f"{name}_") for name in names)


@folded("path", sorted(TESTS.rglob("*.py")))
def test_test_files_are_short(path):
    assert path.read_text(encoding="utf-8").count("\n") <= TEST_CEILING


def test_no_public_class_has_the_name_of_another():
    places = defaultdict(list)
    for module, path in ALL.items():
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert not {name: where for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("package", [m for m, p in ALL.items() if p.name == "__init__.py"])
def test_no_public_name_hides_a_module(package):
    modules = {module.rpartition(".")[2] for module in ALL
               if module.rpartition(".")[0] == package}
    tree = TREES[ALL[package]]
    defined = {node.name for node in tree.body
               if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    taken = {alias.asname or alias.name for node in tree.body
             if isinstance(node, ast.ImportFrom) for alias in node.names
             if f"{node.module}.{alias.name}" not in ALL}
    assert not modules & (defined | taken)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=False)


def test_importing_starts_neither_mpi_nor_a_gpu_nor_numpy():
    done = run("import sys, hpccoll; "
               "sys.exit(' '.join({'numpy', 'mpi4py', 'cupy', 'matplotlib', 'ml_dtypes', 'torch',"
               " 'jax', 'keras'} & set(sys.modules)) or None)")
    assert done.returncode == 0, done.stderr


def test_lower_floors_work_without_numpy_and_mpi4py():
    done = run("import sys; sys.modules.update(numpy=None, mpi4py=None, cupy=None)\n"
               "import hpccoll\n"
               "from hpccoll.explain import as_text\n"
               "s = hpccoll.schedule('allreduce', 'rails', topology='2x2')\n"
               "hpccoll.verify(s); as_text(s)\n"
               "hpccoll.simulate(s, nbytes=1000)")
    assert done.returncode == 0, done.stderr


def test_public_names():
    assert {name for name in dir(hpccoll) if not name.startswith("_")} == set(hpccoll.__all__)
    for name in hpccoll.__all__:
        assert getattr(hpccoll, name).__doc__
    with pytest.raises(AttributeError, match="'Com'"):
        hpccoll.Com


def test_threads_start_in_three_places():
    """``worker``, and in C for plans and for the time of MPI_Finalize; a worker has an owner."""
    starts = re.compile(r"\b(?:threading\.Thread|Timer|ThreadPoolExecutor|start_new_thread"
                        r"|pthread_create|thrd_create)\(|from threading import")
    found = [path.stem for path in (*MODULES.values(), *C_FILES)
             for _ in starts.findall(path.read_text(encoding="utf-8"))]
    assert sorted(found) == ["_background", "_finalize", "worker"]


def test_transports_know_bytes_and_peers_only():
    for module, path in MODULES.items():
        if room_of(module) == "transport":
            rooms = {room_of(name) for name in imports(path) if name.split(".")[0] == "hpccoll"}
            assert rooms <= {"errors", "transport"}, module


def test_the_room_of_gpus_has_one_door():
    """Other rooms import the names of ``hpccoll.cuda``; all of them exist, and are used."""
    checkers, used = set(), set()
    for module, path in MODULES.items():
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.Import) and room_of(module) != "cuda":
                assert not {"hpccoll.cuda"} & {alias.name[:12] for alias in node.names}, module
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("hpccoll.cuda"):
                names = {alias.name for alias in node.names}
                if module == "hpccoll.cuda":
                    checkers |= names
                elif room_of(module) != "cuda":
                    assert node.module == "hpccoll.cuda", f"{module}: {node.module}"
                    used |= names
            elif isinstance(node, ast.ImportFrom) and node.module == "hpccoll":
                assert "cuda" not in {alias.name for alias in node.names}, module
    assert used == checkers == set(hpccoll.cuda._MODULES)
    assert all(hasattr(hpccoll.cuda, name) for name in used)
    assert not used & {module.removeprefix("hpccoll.cuda.") for module in MODULES}


def test_no_module_for_gpus_needs_cupy_before_a_call():
    modules = ", ".join(module for module in MODULES if room_of(module) == "cuda")
    done = run(f"import sys; sys.modules['cupy'] = None\nimport {modules}")
    assert done.returncode == 0, done.stderr


def test_the_process_group_of_torch_needs_nothing_of_horovod():
    """Nor of ``training``: it imports its own folder, the entry point and modules of tensors."""
    torch = "hpccoll.torch"
    folder, shared = f"{torch}.process_group", {f"{torch}.{name}" for name in (
        "backend", "tensors", "huge_pages", "streams")}
    waiting = [module for module in MODULES if f"{module}.".startswith(f"{folder}.")]
    assert len(waiting) > 8
    waiting += shared
    for module in waiting:
        for name in imports(MODULES[module]):
            if room_of(name) == "torch" and name.startswith("hpccoll"):
                assert name.startswith(f"{folder}.") or name in shared, f"{module}: {name}"
            assert not name.startswith("hpccoll.training"), f"{module}: {name}"
