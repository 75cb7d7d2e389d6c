"""Picture of a record: the time of each program with hpccoll, divided by the plain time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from applications.environments import LIBRARIES
from hpccoll.explain.plotting import FEW, INK, SOFT, dress, new_figure, save

#: Inches: width, height of a program, and of the rest.
WIDTH, HEIGHT, REST = 8.0, 0.42, 1.2


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a row for each program, a point for each library and number of ranks.

    Raises:
        HpccollError: matplotlib is not installed.
    """
    results = [one for one in record["results"] if not any(one["plain"]["statuses"])]
    names = list(dict.fromkeys(one["program"] for one in results))
    kinds = list(dict.fromkeys((one["library"], one["ranks"]) for one in results))
    figure = new_figure(WIDTH, REST + HEIGHT * max(len(names), 1))
    panel: Any = figure.subplots()
    dress(panel, "total time with hpccoll / plain time; left of the line hpccoll is faster")
    for number, (library, ranks) in enumerate(kinds):
        chosen = [one for one in results if (one["library"], one["ranks"]) == (library, ranks)]
        panel.plot([one["hpccoll"]["median_seconds"] / one["plain"]["median_seconds"]
                    for one in chosen],
                   [names.index(one["program"]) + 0.12 * (number - (len(kinds) - 1) / 2)
                    for one in chosen],
                   linestyle="", marker="os"[list(LIBRARIES).index(library) % 2], markersize=6,
                   color=FEW[number % len(FEW)], label=f"{LIBRARIES[library]}, {ranks} ranks")
    panel.axvline(1, color=SOFT, linewidth=1.4, zorder=1)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    panel.set_yticks(range(len(names)), names, color=INK)
    panel.invert_yaxis()
    panel.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 0.96))
    figure.tight_layout()
    save(figure, path, dpi=130, bbox_inches="tight")
