"""Below which link rate a scheme pays: measured work against the bytes that it saves.

    time of a bucket = work + wire bytes / link rate, where nothing is overlapped
    pays below         (wire of none - wire) / (work - work of none)

Run ``python benchmarks/compress_pays.py`` on the machine in question. Work is measured on one
rank, which does a little more of it than each of several.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy
from mpi4py import MPI

from hpccoll import Comm, units
from hpccoll.atomic_file import is_writable
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.training.compress import SCHEMES, Scheme, parse
from hpccoll.training.compress.scheme import Shapes

#: Each scheme once it has settled.
FORMS = [*(name for name in SCHEMES if name != "powersgd"),
         "topk:method=sampled", "powersgd:dense_steps=0"]
#: Columns of the matrices in the bucket, and the most rows.
COLUMNS, ROWS = 1024, 1024


class Price(NamedTuple):
    """What a scheme costs for one bucket.

    Attributes:
        scheme: its text.
        work: seconds of a rank's own work in a step.
        wire: bytes that a rank sends.
        below: bytes per second; on slower links it pays. Infinite for what has no work of its own.
    """

    scheme: str
    work: float
    wire: float
    below: float

    def seconds(self, rate: float) -> float:
        """Of a bucket at a link rate in bytes per second."""
        return self.work + self.wire / rate


def shapes_of(nbytes: int) -> Shapes:
    """Matrices of float32 with so many bytes together."""
    count = max(1, nbytes // 4)
    whole, rest = divmod(count, ROWS * COLUMNS)
    rows, rest = divmod(rest, COLUMNS)
    return [*[(ROWS, COLUMNS)] * whole, *[(rows, COLUMNS)] * (rows > 0), *[(rest,)] * (rest > 0)]


def work_seconds(scheme: Scheme, shapes: Shapes, tries: int = 9) -> float:
    """Seconds that a step takes on one rank, waits left out: the least of some tries."""
    comm = Comm(MPI.COMM_SELF)
    reduction = scheme.start(comm, shapes)
    given = numpy.random.default_rng(0).standard_normal(reduction.count).astype("f4")
    values, least = numpy.empty_like(given), float("inf")
    for _ in range(tries + 1):
        values[:] = given
        work, clock = 0.0, time.perf_counter()
        for request in reduction.reduce(values):
            work += time.perf_counter() - clock
            request.Wait()
            clock = time.perf_counter()
        least = min(least, work + time.perf_counter() - clock)
    return least


def costs(nbytes: int, size: int, forms: Sequence[str] = FORMS) -> list[Price]:
    """Measure schemes on a bucket of so many bytes, for so many ranks; no compression comes first.

    >>> [one.scheme for one in costs(4096, 8, ["bf16"])]
    ['none', 'bf16']

    Raises:
        ArgumentError: an unknown scheme, before anything is measured.
    """
    shapes = shapes_of(nbytes)
    found: list[Price] = []
    schemes = {form: parse(form) for form in ("none", *forms)}
    for form, scheme in schemes.items():
        work, wire = work_seconds(scheme, shapes), scheme.wire_bytes(shapes, size)
        more = work - found[0].work if found else 0.0
        saved = found[0].wire - wire if found else 0.0
        below = saved / more if more > 0 else float("inf") if saved > 0 else 0.0
        found.append(Price(form, work, wire, max(0.0, below)))
    return found


def table(found: Sequence[Price], nbytes: int) -> str:
    """The costs as text."""
    lines = [f"{'scheme':<24}{'work':>10}{'rate':>11}{'wire':>9}{'pays below':>15}"]
    for one in found:
        share = one.wire / found[0].wire if found[0].wire else 1.0
        below = "-" if one is found[0] else f"{one.below * 8 / 1e9:.3g} Gbit/s"
        lines.append(f"{one.scheme:<24}{units.time_text(one.work, 3):>10}"
                     f"{units.rate_text(nbytes / one.work):>11}{share:>8.2%}{below:>15}")
    return "\n".join(lines)


def check(path: str) -> None:
    """Find out whether a picture can be drawn into a file.

    Raises:
        HpccollError: matplotlib is not installed, an unknown format, or no file to write to.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise HpccollError("matplotlib is not installed; run pip install "
                           "'hpccoll[plot]'") from error
    if path.rpartition(".")[2].lower() not in Figure().canvas.get_supported_filetypes():
        raise ArgumentError("--plot", f"{path!r} has an unknown suffix", "choose png, svg or pdf")
    if not is_writable(path):
        raise ArgumentError("--plot", f"cannot write {path!r}")


def plot(found: Sequence[Price], path: str) -> None:
    """Draw the time of a bucket over the link rate."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    rates = numpy.geomspace(0.01, 400, 200)
    for number, one in enumerate(found):
        axes.loglog(rates, [one.seconds(rate * 1e9 / 8) for rate in rates], label=one.scheme,
                    linewidth=2.5 if number == 0 else 1.5, linestyle=("-", "--")[number >= 10])
    axes.set_xlabel("link rate of a rank, Gbit/s")
    axes.set_ylabel("work and transfer of a bucket, s")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and draw.

    Raises:
        HpccollError: something that cannot be measured, or a picture that cannot be drawn.
    """
    parser = argparse.ArgumentParser(prog="compress_pays.py",
                                     description="Below which link rate compression pays.")
    parser.add_argument("--nbytes", default="25M", help="bytes of the bucket (default 25M)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks (default 8)")
    parser.add_argument("--plot", default="", help="file for a picture")
    parser.add_argument("schemes", nargs="*", default=FORMS, help="such as topk:density=0.001")
    asked = parser.parse_args(arguments)
    nbytes = units.size("--nbytes", asked.nbytes, least=4)
    if asked.ranks < 2:
        raise ArgumentError("--ranks", f"{asked.ranks} are too few", "give 2 or more")
    if asked.plot:
        check(asked.plot)
    found = costs(nbytes, asked.ranks, asked.schemes)
    print(table(found, nbytes))
    if asked.plot:
        plot(found, asked.plot)


if __name__ == "__main__":
    try:
        main()
    except HpccollError as error:
        print(f"hpccoll: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
