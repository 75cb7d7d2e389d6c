"""What of CuPy hpccoll uses, and whether the stand-in for tests asks nothing else of it.

``PYTHONPATH=.:tests python -m support.gpu.cupy_interface``, where CuPy is installed, writes down
what CuPy says about the names that hpccoll uses: ``tests/gpu/cupy.json``. No driver is needed.
tests/gpu compares the stand-in with that record anywhere, and with the CuPy that is there where
one is.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from importlib import import_module, metadata
from pathlib import Path
from types import FunctionType, SimpleNamespace

from support.gpu import device, nccl, streams

TESTS = Path(__file__).resolve().parents[2]
PACKAGE, RECORD = TESTS.parent / "hpccoll", TESTS / "gpu" / "cupy.json"
#: Names that stand for CuPy, for NumPy or CuPy, or for a part of CuPy, in the sources.
ROOTS = {"cupy": "", "namespace": "", "nccl": "cuda.nccl.",
         "nccl_rank": "cuda.nccl.NcclCommunicator."}
#: What the stand-in does not have: a child process, and the command doctor, use it.
ELSEWHERE = {"arange", "zeros"}
#: Named in a message for the user.
TOLD = {"ascontiguousarray"}
#: Classes of CuPy: their stand-ins, and what those have for themselves.
CLASSES = {
    "ndarray": (device.DeviceArray, {"raw", "machine", "number", "shift", "like"}),
    "RawKernel": (device.RawKernel, set()),
    "cuda.MemoryPointer": (device.Pointer, {"count", "index"}),
    "cuda.Stream": (streams.Stream, {"machine", "null", "non_blocking", "last", "synchronized",
                                     "push", "graph", "broken", "meant"}),
    "cuda.Event": (streams.Event, {"machine", "task", "query", "happening"}),
    "cuda.Device": (streams.Device, {"machine", "left"}),
    "cuda.nccl.NcclCommunicator": (nccl.Communicator, {"enqueue"}),
}
#: Attributes that instances of the stand-in have, and its classes do not show.
INSTANCES = {"RawKernel": ("code", "name", "options"), "cuda.Stream": ("device_id",),
             "cuda.Device": ("id",)}
#: Methods with names of this kind that are looked at.
SPECIAL = ("__call__", "__enter__", "__exit__", "__getitem__", "__len__", "__setitem__")


def used() -> set[str]:
    """Names below CuPy in the sources, ``cuda.Stream`` for example, also in programs in texts."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if any(root in path.read_text() for root in ROOTS):
            trees = [ast.parse(path.read_text())]
            trees += [ast.parse(node.value) for node in ast.walk(trees[0])
                      if isinstance(node, ast.Constant) and isinstance(node.value, str)
                      and re.search(r"^import .*\bcupy\b", node.value, re.MULTILINE)]
            for tree in trees:
                found |= {name for node in ast.walk(tree) if (name := _below(node))}
    # Of a name, its parts: those that are no name of their own.
    return {name for name in found if not any(other.startswith(name + ".") for other in found)}


def _below(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        root = (node.value.id if isinstance(node.value, ast.Name) and node.value.id in ROOTS else
                node.attr)
        if root in ROOTS:
            return ROOTS[root] + ".".join(parts[parts[0] in ROOTS:]) if parts[1:] or (
                parts[0] not in ROOTS) else None
        node = node.value
    return None


def doubled() -> dict[str, inspect.Signature | None]:
    """What the stand-in has: names, and how they are called; ``None`` for attributes."""
    cupy = device.module(streams.Devices())
    found: dict[str, inspect.Signature | None] = {}

    def walk(prefix: str, where: dict) -> None:
        for name, value in where.items():
            if isinstance(value, SimpleNamespace):
                walk(f"{prefix}{name}.", vars(value))
            elif not name.startswith("_"):
                error = isinstance(value, type) and issubclass(value, Exception)
                found[prefix + name] = inspect.signature(value) if error or isinstance(
                    value, FunctionType) else None

    walk("", vars(cupy))
    for path, (stand_in, own) in CLASSES.items():
        if path == "RawKernel":
            found[path] = inspect.signature(stand_in)
        found |= dict.fromkeys(f"{path}.{name}" for name in INSTANCES.get(path, ()))
        for name, value in vars(stand_in).items():
            if name not in own and (name in SPECIAL or not name.startswith("_")):
                found[f"{path}.{name}"] = (inspect.signature(value)
                                           if isinstance(value, FunctionType) else None)
    return found


def told(cupy: object, name: str) -> str:
    """What CuPy says how a name is called; empty for attributes."""
    value = cupy
    for part in name.split("."):
        # Some attributes are those of instances; the null stream is one that needs no driver.
        value = getattr(value if hasattr(value, part) else getattr(value, "null", value), part)
    if not callable(value):
        return ""
    try:
        return _plain(str(inspect.signature(value)))
    except (TypeError, ValueError):
        first = (value.__doc__ or "").partition("\n")[0].replace("\\", "")
        return _plain(first[first.index("("):]) if "(" in first else ""


def _plain(text: str) -> str:
    """A signature without types and defaults: ``(a, dtype=, *, copy=)``."""
    inner = re.sub(r"\[[^]]*\]", "", text[1:text.rindex(")")])
    parameters = []
    for part in filter(None, map(str.strip, inner.split(","))):
        before, default, _ = part.partition("=")
        name = before.partition(":")[0].split()[-1].lstrip("_") or before
        parameters.append(name + default)
    return f"({', '.join(parameters)})"


def misfit(mine: inspect.Signature, real: str) -> str | None:
    """Why a call that the stand-in takes might not be one that CuPy takes; ``None`` if it is."""
    theirs = real[1:-1].split(", ") if real != "()" else []
    named = {name.rstrip("="): name.endswith("=") for name in theirs if name[0] not in "*/"}
    places = [name.rstrip("=") for name in theirs[:theirs.index("*") if "*" in theirs else None]
              if name != "/"]
    rest = {name for name in theirs if name.startswith("*") and name != "*"}
    for place, one in enumerate(mine.parameters.values()):
        if one.name == "self" or rest and one.kind is one.KEYWORD_ONLY:
            continue
        if one.kind is one.VAR_POSITIONAL:
            if not rest:
                return f"takes any number of operands, CuPy: {real}"
        elif one.name not in named:
            return f"has {one.name}, CuPy: {real}"
        elif one.kind is one.POSITIONAL_OR_KEYWORD and places[place:place + 1] != [one.name]:
            return f"has {one.name} in another place, CuPy: {real}"
        elif one.default is not one.empty and not named[one.name]:
            return f"need not be told {one.name}, CuPy: {real}"
    missing = [name for name, optional in named.items()
               if not optional and name != "self" and name not in mine.parameters]
    return f"is not told {', '.join(missing)}, CuPy: {real}" if missing else None


def record() -> dict:
    """What the installed CuPy says."""
    cupy = import_module("cupy")
    import_module("cupy.cuda.nccl")  # a module of its own, which needs nvidia-nccl-cu12
    distribution = next(name for name in metadata.packages_distributions()["cupy"])
    return {"package": f"{distribution} {metadata.version(distribution)}",
            "names": {name: told(cupy, name)
                      for name in sorted({*doubled(), *ELSEWHERE, *TOLD})}}


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=1) + "\n")
    print(f"{RECORD}: {len(record()['names'])} names")
