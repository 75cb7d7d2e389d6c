"""Find names in docstrings that do not exist: ``python tests/names.py``

A name stands in double backquotes, or in a role such as ``:func:``. Every part of it must occur in
the code, outside of docstrings; an attribute of a class of the package must be one of that class,
and a full name that begins with ``hpccoll`` must be a module, or stand in one.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "hpccoll"
#: Where names occur: code, C, and the files that configure tools.
CODE = ("hpccoll/**/*.py", "tests/**/*.py", "examples/**/*.py", "benchmarks/**/*.py",
        "docs/*.py", "*.py")
OTHER = ("hpccoll/**/*.[ch]", "hpccoll/**/*.cu", "hpccoll/**/*.json", "Makefile", "*.toml",
         "jobs/*")
NAME = re.compile(r"``([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?``"
                  r"|:(?:mod|func|class|data|meth|attr):`~?\.?([\w.]+)`")
#: Names of other libraries and of the system that the code does not use.
OUTSIDE = frozenset("""
    AsyncCollectiveTensor DLManagedTensorVersioned DLTensor DistributedBackendOptions EarlyStopping
    Future GradBucket GradientTransformation HierarchicalModelAverager MADV_COLLAPSE MPI_Waitall
    MultiSteps NV12 OnebitAdam PXB PeriodicModelAverager ReduceLROnPlateau cudaMalloc finally lax
    local_step_clipper local_step_scaler logaddexp optax pg_options psum set_exception
    var_freeze_step var_update_scaler verifiable while_loop""".split())
#: An attribute of a class of mpi4py; names that another change removes.
ALLOWED = {("hpccoll/arrays/kernels.py", "Op.Reduce_local"),
           ("hpccoll/comm/requests.py", "Driven.Wait"),
           ("hpccoll/runtime/execution/compiled_operations.py", "Underway.linger"),
           ("hpccoll/transport/__init__.py", "Posting.uses")}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """Return the docstring of a module, class or function."""
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
        return node.body[0].value  # type: ignore[attr-defined]
    return None


def words_of(tree: ast.AST) -> Iterator[str]:
    """Yield the names in the code of a module, and the words of its strings."""
    docstrings = {docstring_of(node) for node in ast.walk(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in docstrings:
                yield from re.findall(r"\w+", node.value)
        else:
            for field in ("id", "attr", "arg", "name", "asname", "module"):
                if isinstance(value := getattr(node, field, None), str):
                    yield from value.split(".")


def attributes_of(classes: dict[str, list[ast.ClassDef]], name: str) -> set[str]:
    """Return the names that the classes of this name and their bases define."""
    found: set[str] = set()
    for known in classes.get(name, []):
        for node in ast.walk(known):
            found.update(value for field in ("id", "attr", "arg", "name")
                         if isinstance(value := getattr(node, field, None), str))
        for base in known.bases:
            if (parent := ast.unparse(base).split(".")[-1]) != name:
                found |= attributes_of(classes, parent)
    return found


def main() -> int:
    """Print every name that does not exist."""
    trees = {path: ast.parse(path.read_text("utf-8"))
             for pattern in CODE for path in sorted(TOP.glob(pattern))}
    known = {*dir(builtins), *OUTSIDE}
    for path, tree in trees.items():
        known.update(words_of(tree), path.relative_to(TOP).with_suffix("").parts)
    for pattern in OTHER:
        for path in TOP.glob(pattern):
            if path.is_file():
                known.update(re.findall(r"\w+", path.read_text("utf-8", "replace")), [path.stem])
    classes: dict[str, list[ast.ClassDef]] = {}
    for path, tree in trees.items():
        if PACKAGE in path.parents:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append(node)
    faults = []
    for path, tree in trees.items():
        if PACKAGE not in path.parents:
            continue
        for node in ast.walk(tree):
            text = docstring_of(node)
            for match in NAME.finditer(text.value if text else ""):
                name = match[1] or match[2]
                parts = name.split(".")
                missing = [part for part in parts if part not in known]
                if len(parts) == 2 and parts[0] in classes and not missing:
                    missing = [part for part in parts[1:]
                               if part not in attributes_of(classes, parts[0])]
                if parts[0] == "hpccoll" and not missing and not stands(parts, trees):
                    missing = [name]
                if missing and (path.relative_to(TOP).as_posix(), name) not in ALLOWED:
                    faults.append(f"{path.relative_to(TOP)}:{text.lineno}: '{name}' does not exist")
    print("\n".join(faults) or "names: all that docstrings name exist")
    return bool(faults)


def stands(parts: list[str], trees: dict[Path, ast.Module]) -> bool:
    """Return True if a full name is a module or package, or the name of something in one."""
    for end in range(len(parts), 0, -1):
        place = TOP.joinpath(*parts[:end])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                rest = parts[end:]
                return not rest or rest[0] in set(words_of(trees[path]))
    return False


if __name__ == "__main__":
    sys.exit(main())
