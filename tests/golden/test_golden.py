"""The text of small schedules, and the page of algorithms: a change is a decision.

    pytest tests/golden --update-golden

writes the files anew. Each file here holds one collective, all algorithms for 3, 4 and 5 ranks;
docs/algorithms.md is made from the table of algorithms, and the table of docs/api/contract.md that
says how calls are compared from that of methods. public-names.txt is the API: what stands in no
``__all__`` may change.
"""

import ast
import re
from difflib import unified_diff
from importlib import import_module
from pathlib import Path

import pytest

from docs.algorithms_page import as_markdown
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.comm.contract import CONTRACT
from hpccoll.ir.collectives import COLLECTIVES

HERE = Path(__file__).parent
TOP = HERE.parents[1]
SIZES = (3, 4, 5)
LAYOUTS = ("2x2", "3,1", "2,3")
#: Not rank 0, so that it shows when an algorithm forgets to turn the ranks.
ROOT = 1


def text(collective: str) -> str:
    """All algorithms' schedules, one after the other."""
    root = ROOT if COLLECTIVES[collective].rooted else 0
    made = []
    for name, entry in ALGORITHMS[collective].items():
        if entry.hierarchical:
            made += [schedule(collective, name, topology=layout, root=root) for layout in LAYOUTS]
        else:
            made += [schedule(collective, name, size, root=root) for size in SIZES]
    return "\n".join("\n".join(each.lines()) + "\n" for each in made)


def compare(path, now, request):
    """Fail with the difference between a file and what it should hold."""
    if request.config.getoption("--update-golden"):
        path.write_text(now, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if now != kept:
        changes = "\n".join(unified_diff(kept.splitlines(), now.splitlines(), path.name,
                                         "now", lineterm=""))
        pytest.fail(f"{changes}\n\nIf this is intended: pytest tests/golden --update-golden",
                    pytrace=False)


def public_names() -> str:
    """The public names: a line for each module that has an ``__all__``."""
    lines = []
    for path in sorted((TOP / "hpccoll").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                module = ".".join(path.relative_to(TOP).with_suffix("").parts)
                names = ast.literal_eval(node.value)
                assert sorted(set(names)) == sorted(names)
                lines.append(f"{module.removesuffix('.__init__')}: {' '.join(sorted(names))}\n")
    return "".join(lines)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_schedules_are_what_they_were(collective, request):
    compare(HERE / f"{collective}.txt", text(collective), request)


def test_the_public_names_are_what_they_were(request):
    compare(HERE / "public-names.txt", public_names(), request)


@pytest.mark.parametrize("line", (HERE / "public-names.txt").read_text().splitlines(),
                         ids=lambda line: line.partition(":")[0])
def test_public_names_exist(line):
    name, _, names = line.partition(": ")
    for framework in set(name.split(".")) & {"jax", "keras", "torch"}:
        pytest.importorskip(framework)
    module = import_module(name)
    assert [each for each in names.split() if not hasattr(module, each)] == []


def test_the_page_of_algorithms_is_made_from_the_table(request):
    compare(TOP / "docs" / "algorithms.md", as_markdown(), request)


def compared():
    """The table of how calls are compared: a line for the methods that are alike in that."""
    methods = {}
    for name, row in CONTRACT.items():
        methods.setdefault(row, []).append(f"`{name}`")
    yield ("| methods | the same on all ranks | compared, where hpccoll serves them | where the "
           "MPI library or mpi4py does |")
    yield "|---|---|---|---|"
    for (how, fields), names in methods.items():
        words = ", ".join(fields).replace("dtype", "type") or "–"
        yield f"| {', '.join(names)} | {words} | {how.ours or '–'} | {how.native or '–'} |"


def test_the_page_of_the_contract_has_its_table(request):
    path = TOP / "docs" / "api" / "contract.md"
    table = "".join(f"{line}\n" for line in compared())
    now = re.sub(r"(<!-- compared -->\n).*?(<!-- filled -->)", rf"\1\n{table}\n\2",
                 path.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
    assert table in now
    compare(path, now, request)


def test_every_other_file_belongs_to_a_collective():
    assert {path.stem for path in HERE.glob("*.txt")} == {
        *ALGORITHMS, "messages", "mistakes", "public-names"}
