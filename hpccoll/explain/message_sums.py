"""Plot of message sums, for schedules with too many messages to draw.

Left, a square for every sender and receiver, darker for more blocks; right, the blocks of each
round, all ranks together, and the number of messages.
"""

from __future__ import annotations

from typing import Any

from hpccoll.explain.plotting import (
    FAINT,
    FEW,
    LABEL,
    SOFT,
    TICK,
    dress,
    headline,
    name_axes,
    new_figure,
)
from hpccoll.explain.replay import Timeline
from hpccoll.explain.text import WANTS, per_rank, title_of
from hpccoll.ir.schedule import Schedule
from hpccoll.units import count_text, size_text

#: Inches.
WIDTH, HEIGHT = 11.0, 5.4


def plot_sums(schedule: Schedule, line: Timeline, nbytes: int | None = None) -> Any:
    """Return a figure of the sums.

    Args:
        nbytes: bytes of a rank's vector, or of all its blocks together.
    """
    figure = new_figure(WIDTH, HEIGHT)
    wants = WANTS[schedule.collective.name].format(root=schedule.root)
    if nbytes is not None and schedule.collective.payload != "none":
        wants += f"; 1 block = {size_text(nbytes / per_rank(schedule))}"
    headline(figure, 0.06, (0.95, title_of(schedule)), (0.895, wants), LABEL)
    square, over_time = (figure.add_axes(place) for place in (
        (0.07, 0.11, 0.36, 0.68), (0.57, 0.11, 0.41, 0.68)))
    _square(square, schedule, line)
    _rounds(over_time, line)
    return figure


def _square(panel: Any, schedule: Schedule, line: Timeline) -> None:
    """Draw the blocks from every rank to every rank; ranks of a group are adjacent."""
    size = schedule.size
    place = schedule.topology.positions if schedule.topology else range(size)
    sent = [[0.0] * size for _ in range(size)]
    for message in line.messages:
        sent[place[message.sender]][place[message.receiver]] += max(len(message.values), 1)
    for operation in line.operations:
        for sender in operation.network.senders:
            for receiver in operation.network.receivers:
                sent[place[sender]][place[receiver]] += max(len(operation.values), 1)
    shown = [[value or float("nan") for value in row] for row in sent]
    image = panel.imshow(shown, cmap="viridis_r", interpolation="nearest", vmin=0)
    dress(panel, "blocks from rank (down) to rank (across)")
    panel.spines[["top", "right"]].set_visible(True)
    panel.spines[["top", "right"]].set_color(FAINT)
    groups = schedule.topology.groups() if schedule.topology else ()
    for group in groups[1:] if len(groups) > 1 else ():
        for across in (panel.axhline, panel.axvline):
            across(place[group[0]] - 0.5, color=FAINT, linewidth=1)
    bar = panel.figure.colorbar(image, ax=panel, fraction=0.046, pad=0.03)
    bar.ax.tick_params(colors=SOFT, labelsize=TICK, length=0)
    bar.outline.set_visible(False)


def _rounds(panel: Any, line: Timeline) -> None:
    """Draw the blocks of every round."""
    blocks, messages = [0] * line.rounds, [0] * line.rounds
    for message in line.messages:
        blocks[message.round - 1] += max(len(message.values), 1)
        messages[message.round - 1] += 1
    for operation in line.operations:
        senders = len(list(operation.network.senders))
        blocks[operation.round - 1] += senders * max(len(operation.values), 1)
        messages[operation.round - 1] += senders
    dress(panel, f"blocks in each of {count_text(line.rounds, 'round')}, "
                 f"{sum(messages):,} messages in all")
    panel.bar(range(1, line.rounds + 1), blocks, width=0.9 if line.rounds < 100 else 1.0,
              color=FEW[0])
    panel.grid(axis="y", color=FAINT, linewidth=0.8)
    name_axes(panel, "round")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.xaxis.get_major_locator().set_params(integer=True)
