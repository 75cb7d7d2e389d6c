"""Space-time diagram of a schedule: ranks down, rounds to the right, a line per message.

A message of several blocks is a band with a stripe per block, so its width shows the volume. It
ends in an arrowhead if it is stored, in a circled plus if it is reduced. Network operations go
through a box. The layout is in inches, so that stripes, heads and letters keep their proportions
from 2 to 32 ranks; letters grow with the width, so that they are readable in pages. Larger
schedules are shown as sums: left, a square for every sender and receiver, darker for more blocks;
right, the blocks of each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from colorsys import hls_to_rgb
from math import ceil, hypot
from os import PathLike, fspath
from typing import Any

from hpccoll.errors import ArgumentError
from hpccoll.explain.plotting import (
    FAINT,
    FEW,
    GROUND,
    INK,
    LABEL,
    SOFT,
    TICK,
    dress,
    headline,
    name_axes,
    new_figure,
    save,
)
from hpccoll.explain.replay import TimedMessage, TimedOperation, Timeline, Value, timeline
from hpccoll.explain.text import WANTS, per_rank, title_of
from hpccoll.ir.schedule import Schedule
from hpccoll.units import byte_count, count_text, size_text

#: Maximum ranks and rounds of a diagram of messages; larger schedules are shown as sums, up to a
#: maximum number of ranks.
MOST_RANKS, MOST_ROUNDS, MOST_SUMMED = 32, 62, 256
#: Maximum numbered blocks of the legend; maximum stripes of a message.
NAMED, STRIPES = 16, 8
#: Width in inches from which letters grow with the diagram, for readability in a page; maximum
#: factor.
READABLE, LARGEST = 9.0, 1.6
#: Inches: margins, an arrowhead, radii of a plus and a dot, the thinnest line, a stripe.
LEFT, RIGHT, TOP, BOTTOM = 0.95, 0.4, 1.5, 0.9
HEAD, PLUS, DOT, THIN, STRIPE = 0.13, 0.075, 0.03, 0.022, 0.0125
#: Inches.
WIDTH, HEIGHT = 11.0, 5.4


def draw(schedule: Schedule, path: str | PathLike, nbytes: int | str | None = None,
         beside: Sequence[Schedule] = ()) -> None:
    """Draw a schedule into a file; the suffix selects the format (png, svg, pdf).

    More than 32 ranks or 62 rounds are shown as sums by sender, receiver and round.

    Args:
        schedule: to draw.
        path: path of the file.
        nbytes: bytes of a rank's vector, or of all its blocks together; shown in the title.
        beside: further schedules, drawn to the right.

    Raises:
        ArgumentError: a schedule too large to be readable, an unknown format, or a path that is
            not writable.
        HpccollError: matplotlib is not installed.
    """
    figure = plot_schedule(schedule, None if nbytes is None else byte_count("nbytes", nbytes),
                           beside)
    formats = figure.canvas.get_supported_filetypes()
    suffix = fspath(path).rpartition(".")[2].lower()
    if suffix not in formats:
        raise ArgumentError("path", f"{fspath(path)!r} has an unknown suffix",
                            f"choose from {', '.join(sorted(formats))}")
    save(figure, path, 160)


def plot_schedule(schedule: Schedule, nbytes: int | None = None,
                  beside: Sequence[Schedule] = ()) -> Any:
    """Return a figure of a schedule: its messages, or their sums if there are too many.

    Further schedules are to its right, with their messages.
    """
    drawn = schedule, *beside
    if schedule.size > MOST_SUMMED:
        raise ArgumentError("size", f"{schedule.size} ranks do not fit into a picture",
                            f"draw at most {MOST_SUMMED}, or omit --draw")
    lines = [timeline(each) for each in drawn]
    if schedule.size > MOST_RANKS or max(line.rounds for line in lines) > MOST_ROUNDS:
        if beside:
            raise ArgumentError("size", f"pictures side by side are limited to {MOST_RANKS} ranks "
                                        f"and {MOST_ROUNDS} rounds",
                                "draw each on its own")
        return plot_sums(schedule, lines[0], nbytes)
    sheets = [_Sheet(each, line.rounds) for each, line in zip(drawn, lines)]
    width, height = sum(sheet.width for sheet in sheets), max(sheet.height for sheet in sheets)
    figure, start = new_figure(width, height), 0.0
    for sheet, line in zip(sheets, lines):
        # From the top: sheets with equal numbers of ranks have their ranks aligned.
        axes = figure.add_axes((start / width, 1 - sheet.height / height, sheet.width / width,
                                sheet.height / height))
        sheet.paint(axes, line, nbytes)
        start += sheet.width
    return figure


class _Sheet:
    """One diagram: positions of ranks and rounds, in inches from the top left, and colours."""

    def __init__(self, schedule: Schedule, rounds: int):
        self.schedule, self.rounds = schedule, max(rounds, 1)
        self.row = min(max(6.0 / schedule.size, 0.4), 0.75) if schedule.size <= 16 else 0.24
        # Steep lines are hard to follow, so rounds widen with the ranks, up to a limit.
        column = max(0.8 + 0.035 * schedule.size, 6.0 / self.rounds)
        self.column = max(min(column, 11 / self.rounds), 0.42)
        self.depth = min(0.36 * self.row, 0.22)
        wide = LEFT + self.column * self.rounds + RIGHT
        #: Scale of letters and their boxes.
        self.zoom = min(max(wide / READABLE, 1.0), LARGEST)
        self.row = max(self.row, 0.2 * self.zoom)
        self.left, self.top, self.bottom = LEFT * self.zoom, TOP * self.zoom, BOTTOM * self.zoom
        # A bold letter of the title is about 0.115 inches wide.
        self.width = max(self.left + self.column * self.rounds + RIGHT * self.zoom,
                         0.125 * self.zoom * len(title_of(schedule)) + 0.6)
        self.height = self.top + self.row * (schedule.size - 1) + self.bottom
        self.pairs = schedule.collective.payload == "pairs"
        self.blocks = per_rank(schedule)
        # Ranks of a group are adjacent, whatever their numbers.
        self.lines = schedule.topology.positions if schedule.topology else range(schedule.size)

    def x(self, time: float) -> float:
        return self.left + self.column * time

    def y(self, rank: int) -> float:
        return self.line(self.lines[rank])

    def line(self, number: int) -> float:
        """Return the position of a line by its number from the top."""
        return self.top + self.row * number

    def colour(self, value: Value | None) -> str | tuple[float, float, float]:
        """Return the colour of a block; in an all-to-all, of its source rank."""
        if value is None:
            return INK
        block = value.block // self.schedule.size if self.pairs else value.block
        return self.palette(block)

    def palette(self, block: int) -> str | tuple[float, float, float]:
        if self.blocks <= len(FEW):
            return FEW[block]
        # Yellow and green are light hues: darkened, they stay readable on white.
        hue = (0.58 + 0.92 * block / self.blocks) % 1
        light = 0.33 if 0.1 < hue < 0.5 else 0.42
        if self.blocks <= NAMED and block % 2:
            light += 0.13
        return hls_to_rgb(hue, light, 0.8)

    def paint(self, axes, line: Timeline, nbytes: int | None) -> None:
        """Draw into axes, whose unit becomes an inch."""
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        self.frame(axes)
        self.header(axes, nbytes)
        self.traffic(axes, line.messages)
        for operation in line.operations:
            self.operation(axes, operation)
        self.legend(axes, line)

    def header(self, axes, nbytes: int | None) -> None:
        schedule = self.schedule
        wants = WANTS[schedule.collective.name].format(root=schedule.root)
        if nbytes is not None and schedule.collective.payload != "none":
            wants += f" \N{MIDDLE DOT} 1 block = {size_text(nbytes / self.blocks)}"
        axes.text(0.3, 0.38 * self.zoom, title_of(schedule), size=13 * self.zoom, weight="bold",
                  color=INK, va="center")
        axes.text(0.3, 0.7 * self.zoom, wants, size=10 * self.zoom, color=SOFT, va="center")

    def frame(self, axes) -> None:
        """Draw ranks as lines, rounds as columns, outermost groups of the topology as fields."""
        size, depth = self.schedule.size, self.depth
        topology = self.schedule.topology
        groups = topology.groups() if topology and topology.depth > 1 else [range(size)]
        for number, group in enumerate(groups):
            top, bottom = self.y(group[0]) - depth, self.y(group[-1]) + depth
            axes.fill_between([self.x(0), self.x(self.rounds)], top, bottom, color=GROUND, lw=0)
            if len(groups) > 1:
                axes.text(self.x(self.rounds) + 0.2 * self.zoom, (top + bottom) / 2,
                          f"node {number}", size=10 * self.zoom, color=SOFT, rotation=90,
                          ha="center", va="center")
        axes.vlines([self.x(t) for t in range(self.rounds + 1)], self.line(0) - depth,
                    self.line(size - 1) + depth, color="white", lw=1.5)
        axes.hlines([self.y(r) for r in range(size)], self.x(0), self.x(self.rounds),
                    color=FAINT, lw=1)
        for rank in range(size):
            axes.text(self.x(0) - 0.14, self.y(rank), f"rank {rank}",
                      size=9.5 * self.zoom if self.row > 0.3 else 8.5 * self.zoom, color=INK,
                      ha="right", va="center")
        every = max(ceil(0.3 * self.zoom / self.column), 1)
        for time in range(0, self.rounds, every):
            axes.text(self.x(time + 0.5), self.line(0) - depth - 0.14 * self.zoom, time + 1,
                      size=9.5 * self.zoom, color=SOFT, ha="center", va="center")
        axes.text(self.x(0) - 0.14, self.line(0) - depth - 0.14 * self.zoom, "round",
                  size=9.5 * self.zoom, color=SOFT, ha="right", va="center")

    def traffic(self, axes, messages: Sequence[TimedMessage]) -> None:
        from matplotlib.collections import LineCollection, PolyCollection

        crowded = {r for r, n in Counter(m.round for m in messages).items()
                   if n > 3 * self.schedule.size}
        segments, colours, widths, heads, fills = [], [], [], [], []

        def stroke(ends, colour, width):
            segments.append(tuple(ends))
            colours.append(colour)
            widths.append(72 * width)

        for message in bundle(messages):
            start, end = self.ends(message)
            dx, dy = end[0] - start[0], end[1] - start[1]
            along = dx / hypot(dx, dy), dy / hypot(dx, dy)
            stripes = [self.colour(v) for v in
                       message.values[::-(-len(message.values) // STRIPES) or 1]]
            width = max(STRIPE * len(stripes), THIN)
            stop = end if message.side else (end[0] - along[0] * HEAD, end[1] - along[1] * HEAD)
            if message.round not in crowded:
                # An edge under the middle of each message keeps crossing ones apart.
                stroke(((start[0] + f * dx, start[1] + f * dy) for f in (0.2, 0.8)),
                       GROUND, width + 0.03)
            for number, colour in enumerate(stripes or [SOFT]):
                share = width / max(len(stripes), 1)
                aside = (number + 0.5) * share - width / 2
                stroke(((x - along[1] * aside, y + along[0] * aside) for x, y in (start, stop)),
                       colour, share if stripes else share * 0.6)
            shade = stripes[0] if len(set(stripes)) == 1 else INK if stripes else SOFT
            dot = min(max(DOT, 0.6 * width), 0.05)
            axes.plot(*start, "o", ms=144 * dot, color=shade, mew=0, zorder=4)
            if message.side:
                self.plus(axes, end, shade)
            else:
                half = 0.045 + width / 2
                heads.append([end, (stop[0] - along[1] * half, stop[1] + along[0] * half),
                              (stop[0] + along[1] * half, stop[1] - along[0] * half)])
                fills.append(shade)
        axes.add_collection(LineCollection(segments, colors=colours, linewidths=widths,
                                           capstyle="butt", zorder=3), autolim=False)
        axes.add_collection(PolyCollection(heads, facecolors=fills, linewidths=0, zorder=4),
                            autolim=False)

    def operation(self, axes, operation: TimedOperation) -> None:
        """Draw a network operation: from the sources to a box, and from there to the sinks."""
        sources, sinks = list(operation.network.senders), list(operation.network.receivers)
        # Operations of one round are separate if each has one source or one sink.
        near = sources if len(sources) == 1 else sinks if len(sinks) == 1 else [*sources, *sinks]
        gap = min(0.12, self.column / 8)
        start, end = self.x(operation.round - 1) + gap, self.x(operation.round) - gap
        box = (start + end) / 2, sum(map(self.y, near)) / len(near)
        shades = {self.colour(value) for value in operation.values} or {SOFT}
        shade = shades.pop() if len(shades) == 1 else INK
        width = 72 * max(STRIPE * min(len(operation.values), STRIPES), THIN)
        for rank in sources:
            axes.plot([start, box[0]], [self.y(rank), box[1]], color=shade, lw=width, zorder=3)
            axes.plot(start, self.y(rank), "o", ms=144 * DOT, color=shade, mew=0, zorder=4)
        for rank, side in zip(sinks, operation.sides):
            axes.plot([box[0], end], [box[1], self.y(rank)], color=shade, lw=width, zorder=3)
            if side:
                self.plus(axes, (end, self.y(rank)), shade)
            else:
                axes.plot(end, self.y(rank), ">", ms=72 * HEAD, color=shade, mew=0, zorder=4)
        self.box(axes, box, shade, operation.network.reduces)

    def box(self, axes, centre: tuple[float, float], colour, reduces: bool) -> None:
        """Draw the network as a box, with a plus if it reduces."""
        axes.plot(*centre, "s", ms=144 * PLUS, mfc="white", mec=colour, mew=1.4, zorder=5)
        if reduces:
            axes.plot(*centre, "+", ms=86 * PLUS, mec=colour, mew=1.4, zorder=6)

    def ends(self, message: TimedMessage) -> tuple[tuple[float, float], tuple[float, float]]:
        gap = min(0.12, self.column / 8)
        return ((self.x(message.round - 1) + gap, self.y(message.sender)),
                (self.x(message.round) - gap, self.y(message.receiver)))

    def plus(self, axes, centre: tuple[float, float], colour) -> None:
        """Draw a circled plus: the arriving block is reduced."""
        axes.plot(*centre, "o", ms=144 * PLUS, mfc="white", mec=colour, mew=1.4, zorder=5)
        axes.plot(*centre, "+", ms=86 * PLUS, mec=colour, mew=1.4, zorder=6)

    def legend(self, axes, line: Timeline) -> None:
        """Draw the legend: colours of blocks on the left, ends of lines on the right."""
        messages: list[TimedMessage | TimedOperation] = [*line.messages, *line.operations]
        zoom, y = self.zoom, self.height - 0.34 * self.zoom
        if not any(m.values for m in messages):
            axes.text(0.3, y, "messages carry no data" if messages else
                      "no messages: everything is local", size=10 * zoom, color=SOFT, va="center")
            return
        word = "from rank" if self.pairs else "block"
        axes.text(0.3, y, word, size=10 * zoom, color=SOFT, va="center")
        start = x = 0.3 + (0.14 + 0.083 * len(word)) * zoom
        cell = (0.23 if self.blocks <= NAMED else 2.6 / self.blocks) * zoom
        for block in range(self.blocks):
            axes.fill_between([x, x + cell + 0.004], y - 0.1 * zoom, y + 0.1 * zoom,
                              color=self.palette(block), lw=0)
            if self.blocks <= NAMED:
                axes.text(x + cell / 2, y, block, size=8.5 * zoom, color="white", weight="bold",
                          ha="center", va="center")
            x += cell
        if self.blocks > NAMED:
            ends = (start + 0.06, 0, "left"), (x - 0.06, self.blocks - 1, "right")
            for edge, name, side in ends:
                axes.text(edge, y, name, size=8.5 * zoom, color="white", weight="bold", ha=side,
                          va="center")
        kinds = {bool(m.side) for m in line.messages}
        kinds |= {bool(side) for operation in line.operations for side in operation.sides}
        if True in kinds:
            self.plus(axes, (x + 0.35 * zoom, y), INK)
            axes.text(x + 0.49 * zoom, y, "reduced on arrival", size=10 * zoom, color=SOFT,
                      va="center")
            x += 1.75 * zoom
        if False in kinds:
            axes.fill([x + 0.29 * zoom, x + 0.29 * zoom, x + 0.42 * zoom],
                      [y - 0.065 * zoom, y + 0.065 * zoom, y], color=INK, lw=0)
            axes.text(x + 0.49 * zoom, y, "stored on arrival", size=10 * zoom, color=SOFT,
                      va="center")
            x += 1.7 * zoom
        if line.operations:
            reduces = any(operation.network.reduces for operation in line.operations)
            self.box(axes, (x + 0.2 * zoom, y), INK, reduces)
            axes.text(x + 0.38 * zoom, y, "copied or reduced by the network" if reduces else
                      "copied by the network", size=10 * zoom, color=SOFT, va="center")


def bundle(messages: Sequence[TimedMessage]) -> list[TimedMessage]:
    """Join overlapping messages: same round, ranks and kind of arrival."""
    bundles: dict[tuple, TimedMessage] = {}
    for message in messages:
        key = message.round, message.sender, message.receiver, bool(message.side)
        first = bundles.get(key)
        bundles[key] = first._replace(values=first.values + message.values) if first else message
    return list(bundles.values())


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
