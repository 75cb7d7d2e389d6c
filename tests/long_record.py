"""The record of the last ``make long``: what passed, when, and at which commit.

``tests/launch.py`` writes it into ``docs/data/long.json``. ``python tests/long_record.py`` warns
when it is older than a week, or says that a stage failed; its status is always 0.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "data" / "long.json"
#: Days after which the record is too old.
OLD = 7


class Entry(NamedTuple):
    """How long a stage took, in seconds, what it may take, and whether it passed.

    ``processors`` has the seconds of all processors together: other work does not add to these.
    """

    stage: str
    seconds: int
    budget: int
    processors: int
    passed: bool


def write(entries: list[Entry], path: Path = RECORD) -> None:
    """Write the record of a run that has just ended."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True,
                                text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    lines = ",\n".join(f"    {json.dumps(entry._asdict())}" for entry in entries)
    path.write_text(f'{{"date": "{datetime.date.today()}", "commit": "{commit}", '
                    f'"passed": {json.dumps(all(entry.passed for entry in entries))},\n'
                    f' "stages": [\n{lines}]}}\n', encoding="utf-8")


def warnings(path: Path = RECORD, today: datetime.date | None = None) -> list[str]:
    """What a reader of the record should know: that there is none, its age, failed stages."""
    if not path.exists():
        return ["make long: no record; run make long"]
    record = json.loads(path.read_text(encoding="utf-8"))
    days = ((today or datetime.date.today()) - datetime.date.fromisoformat(record["date"])).days
    found = [f"make long: failed on {record['date']}: {entry['stage']}"
             for entry in record["stages"] if not entry["passed"]]
    if days > OLD:
        found.append(f"make long: last run {days} days ago; run make long")
    return found


if __name__ == "__main__":
    print(*(f"WARNING: {warning}" for warning in warnings()), sep="\n", end="")
