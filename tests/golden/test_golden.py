"""The text of small schedules: a change of any step is a decision somebody looks at.

    pytest tests/golden --update-golden

writes the files anew. Each file holds one collective, all algorithms for 3, 4 and 5 ranks.
"""

from difflib import unified_diff
from pathlib import Path

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.collectives import COLLECTIVES

HERE = Path(__file__).parent
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
    return "\n".join(map(str, made))


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_schedules_are_what_they_were(collective, request):
    path, found = HERE / f"{collective}.txt", text(collective)
    if request.config.getoption("--update-golden"):
        path.write_text(found)
    kept = path.read_text() if path.exists() else ""
    if found != kept:
        changes = "\n".join(unified_diff(kept.splitlines(), found.splitlines(), path.name,
                                         "now", lineterm=""))
        pytest.fail(f"{changes}\n\nIf this is intended: pytest tests/golden --update-golden",
                    pytrace=False)


def test_every_file_belongs_to_a_collective():
    assert {path.stem for path in HERE.glob("*.txt")} == set(ALGORITHMS)
