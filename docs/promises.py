"""Fill the columns of docs/internal/promises.md that a run of the tests gives: results, and times.

    python docs/promises.py             write the page from docs/data/faults
    python docs/promises.py --check     exit status 1 if it is not current
    python docs/promises.py --read XML  take the results that ``tests/launch.py --results`` wrote

The promises and their tests are written on the page by hand. ``tests.json`` has the results of the
tests. ``tests/fault/campaign.py -o`` writes the times to detection into the same folder, and
``tests/fault/mismatches.py -o`` the errors of ranks that disagree into ``docs/data/mismatches``.
Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs" / "internal" / "promises.md", ROOT / "docs" / "data" / "faults"
RESULTS, MISMATCHES = DATA / "tests.json", DATA.parent / "mismatches"
BLOCK = re.compile(r"(<!-- (promises|detection|mismatches) -->\n)(.*?)(<!-- filled -->)", re.DOTALL)
#: How a test may have ended, as pytest's files say it.
ENDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}
#: Promises with measured times, by their first words, and the calls in which these were measured.
TIMED = {"A killed, stopped, computing or finished rank": "ours", "Blocking native calls": "native"}


def read(folder: Path) -> dict[str, dict[str, int]]:
    """Count how tests ended, by file, over all stages of a run."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            file = _file(case.get("classname", ""))
            ended = next((ENDS[part.tag] for part in case if part.tag in ENDS), "passed")
            counts = found.setdefault(file, {})
            counts[ended] = counts.get(ended, 0) + 1
    return dict(sorted(found.items()))


def _file(name: str) -> str:
    """The file of a module, which may be followed by a class."""
    words = name.split(".")
    while words and not (ROOT / ("/".join(words) + ".py")).exists():
        words.pop()
    return "/".join(words) + ".py" * bool(words)


def _said() -> list[dict[str, Any]]:
    """The reports of the ranks in the campaign."""
    return [one for path in sorted(DATA.glob("*-*.json"))
            for one in json.loads(path.read_text(encoding="utf-8"))]


def promises(rows: list[str]) -> Iterator[str]:
    """The rows as they are, with how their tests ended, and the times in seconds."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    yield "| promise | how | tests | result | median s | worst s |"
    yield "|---|---|---|---|---:|---:|"
    for row in rows:
        promise, how, tests = row.strip("|").split(" | ")[:3]
        paths = re.findall(r"`(tests/[\w/.]+)`", tests)
        counts: dict[str, int] = {}
        for file, ends in results.items():
            if any(file == path or file.startswith(f"{path}/") for path in paths):
                for end, count in ends.items():
                    counts[end] = counts.get(end, 0) + count
        ended = ", ".join(f"{counts[end]:,} {end}" for end in ("passed", "failed", "skipped")
                          if end in counts)
        served = next((TIMED[words] for words in TIMED if promise.strip().startswith(words)), "")
        times = [one["seconds"] for one in _said() if one["served"] == served
                 and one["fault"] == "kill" and one["kind"] in NAMING]
        yield (f"| {promise.strip()} | {how} | {tests.strip()} | {ended or 'not in this run'} | "
               + (f"{statistics.median(times):.2f} | {max(times):.2f} |" if times else "– | – |"))


LIBRARIES = {"mpich": "MPICH", "openmpi": "Open MPI"}
#: Errors of hpccoll; with any other end the MPI library ended the process.
NAMING = ("PeerLost", "Ended", "CollectiveTimeout", "BrokenCommunicatorError")


def detection(rows: list[str]) -> Iterator[str]:
    """The time until every other rank had named the failed rank."""
    yield ("| library | a rank is | in calls | ranks | jobs | others | named it in time | ended by "
           "the library | deadline s | median s | worst s |")
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    groups: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for one in _said():
        groups.setdefault((one["library"], one["fault"], one["served"], one["ranks"]),
                          []).append(one)
    for (library, fault, served, ranks), said in sorted(groups.items()):
        named = [one for one in said if one["kind"] in NAMING]
        times = [one["seconds"] for one in named]
        yield (f"| {LIBRARIES[library]} | "
               f"{'killed' if fault == 'kill' else 'stopped'} | "
               f"{'hpccoll' if served == 'ours' else 'native'} | {ranks} | "
               f"{len(said) // (ranks - 1)} | {len(said)} | {sum(one['right'] for one in named)} | "
               f"{len(said) - len(named)} | {said[0]['timeout']:g} | "
               f"{statistics.median(times):.2f} | {max(times):.2f} |")


def mismatches(rows: list[str]) -> Iterator[str]:
    """Whether the error of every rank was right, and the time to it."""
    yield ("| library | ranks | calls | level | good calls before | cases | errors | right | "
           "median s | worst s | of it waiting for a processor |")
    yield "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for path in sorted(MISMATCHES.glob("*.json")):
        for one in json.loads(path.read_text(encoding="utf-8")):
            yield (f"| {LIBRARIES[one['library']]} | {one['ranks']} | {one['calls']} | "
                   f"`{one['contract']}` | {one['before']:,} | {one['cases']} | "
                   f"{one['errors']:,} | {one['right']:,} | {one['median']:.3f} | "
                   f"{one['worst']:.2f} | "
                   f"{format(one['waited'], '.2f') if 'waited' in one else '–'} |")


FILLING = {"promises": promises, "detection": detection, "mismatches": mismatches}


def filled(text: str) -> str:
    """The page's text with its blocks as the data have them now."""
    def fill(found: re.Match[str]) -> str:
        rows = [line for line in found[3].splitlines() if line.startswith("| ")][1:]
        return found[1] + "\n" + "\n".join(FILLING[found[2]](rows)) + "\n\n" + found[4]
    return BLOCK.sub(fill, text)


def main(words: list[str]) -> int:
    """Write the page, or only check it; return the exit status."""
    if words[:1] == ["--read"]:
        text = json.dumps(read(Path(words[1])), indent=0)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in words:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
