"""Fill the marked blocks of the pages from records: ``make figures``, ``make applications``.

    python docs/figures.py           write the pages
    python docs/figures.py --check   name the pages that are not current; exit status 1 if any

A block begins with ``<!-- table: NAME -->`` and ends with ``<!-- end -->``; ``BLOCKS`` says what
goes between. The numbers come from ``docs/data/*/*.json`` and ``docs/data/goals.json``, nothing is
measured here. Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data"
#: The pages that have blocks.
PAGES = ("README.md", "docs/index.md", "docs/performance.md", "docs/performance-calls.md",
         "docs/internal/goals.md", "docs/training/measured.md", "docs/applications.md")
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
#: Names of the environments in ``.venv-figures``, which are also the first words of the records.
LIBRARIES = {"mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel MPI"}
#: Number of ranks of most runs.
RANKS = (2, 4)
KIB, MIB = 1 << 10, 1 << 20
#: The largest call that counts as small in the summaries; larger ones have 8 KiB or more.
SMALL = 4 * KIB


#: Bounds of a time that says something, as of ``hpccoll bench`` (hpccoll/measure/noise.py): the
#: factor between the ratios of the middle parts of a run, the largest ratio, and the factors to the
#: time of a larger size, and to that of eight times the bytes.
PARTS, NOISY, ABSURD, LATE, LATE_BY_FAR, FAR = 5, 1.6, 25.0, 10.0, 3.0, 8


class Point(NamedTuple):
    """One median of a record: what was measured, and the columns made of it.

    Attributes:
        clear: False if other processes disturbed it so much that ``bench`` does not compare it.
    """

    collective: str
    candidate: str
    nbytes: int
    seconds: float
    ratio: float
    limit: float | None
    clear: bool = True


# -- the records -------------------------------------------------------------------------------
@cache
def record(folder: str, run: str) -> dict[str, Any]:
    """Read one record, such as ``allreduce`` and ``mpich-2``."""
    return json.loads((DATA / folder / f"{run}.json").read_text(encoding="utf-8"))


@cache
def points(folder: str, run: str) -> tuple[Point, ...]:
    """List all medians of a record."""
    results = record(folder, run)["results"]
    return tuple(Point(r["collective"], r["candidate"], r["nbytes"],
                       r["statistics"]["p50_seconds"], r["statistics"]["ratio"],
                       r["statistics"].get("limit"), _is_clear(r, results)) for r in results)


def _is_clear(result: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    """Return True if ``hpccoll bench`` would compare the result with the library's."""
    def parts(one: dict[str, Any]) -> list[float]:
        cuts = [len(one["seconds"]) * n // PARTS for n in range(PARTS + 1)]
        return [median(one["seconds"][a:b]) for a, b in zip(cuts, cuts[1:]) if a < b]

    def is_late(one: dict[str, Any]) -> bool:
        seconds, nbytes = one["statistics"]["p50_seconds"], one["nbytes"]
        return any(seconds > more["statistics"]["p50_seconds"] * (
            LATE_BY_FAR if more["nbytes"] >= FAR * nbytes else LATE) for more in results
                   if more["nbytes"] > nbytes and all(
                       more[name] == one[name] for name in ("collective", "candidate")))

    native = next((r for r in results if r["candidate"] == "native" and all(
        r[name] == result[name] for name in ("collective", "nbytes"))), None)
    if native is None or not result["seconds"]:
        return True
    inner = sorted(a / b for a, b in zip(parts(native), parts(result)) if b)[1:-1] or [1.0]
    return (inner[-1] <= NOISY * inner[0] and result["statistics"]["ratio"] <= ABSURD
            and not is_late(native) and not is_late(result))


def select_clear(*args: Any) -> list[Point]:
    """Select like :func:`select`, without disturbed points, unless all are."""
    chosen = select(*args)
    return [point for point in chosen if point.clear] or chosen


def disturbed() -> Iterator[str]:
    """The number of points that summaries leave out."""
    known = [point for folder in ("allreduce", "others", "small") for run in runs()
             for point in select(folder, run)]
    yield (f"Summaries leave out {sum(not point.clear for point in known)} of {len(known)} points "
           "that other processes disturbed, by the rule of `hpccoll bench`.")


def select(folder: str, run: str, candidate: str = "auto", collective: str | None = None,
           sizes: tuple[int, int] = (0, 1 << 40)) -> list[Point]:
    """Select the points of a candidate; ``sizes`` are the smallest and the largest, in bytes.

    Raises:
        LookupError: there is none.
    """
    chosen = [p for p in points(folder, run) if p.candidate == candidate
              and p.collective == (collective or p.collective)
              and sizes[0] <= p.nbytes <= sizes[1]]
    if not chosen:
        raise LookupError(f"docs/data/{folder}/{run}.json: no {candidate} of {collective}, {sizes}")
    return chosen


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios: that of r and 1/r is 1."""
    known = list(values)
    return exp(sum(map(log, known)) / len(known))


# -- text --------------------------------------------------------------------------------------
def size(nbytes: int) -> str:
    """Bytes as text: ``8 B``, ``64 KiB``."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes:,} B"


def number(value: float) -> str:
    """Three digits at most, and two behind the point at most."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head: list[str], rows: Iterable[list[str]], left: int = 1) -> Iterator[str]:
    """Make the lines of a table; ``left`` columns are text, the others numbers."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * left + "---:|" * (len(head) - left)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def runs(libraries: Iterable[str] = tuple(LIBRARIES)) -> list[str]:
    """The runs in the order of columns: every library with every number of ranks."""
    return [f"{library}-{ranks}" for library in libraries for ranks in RANKS]


def heads(libraries: Iterable[str] = tuple(LIBRARIES)) -> list[str]:
    """The heads of those columns."""
    return [f"{LIBRARIES[library]}, {ranks} ranks" for library in libraries for ranks in RANKS]


# -- the blocks --------------------------------------------------------------------------------
def machine() -> Iterator[str]:
    """Machine and versions, as the records have them."""
    known = [record("allreduce", f"{library}-2")["environment"] for library in LIBRARIES]
    one = known[0]
    yield (f"* {one['cpu']}, {one['cores']} cores, {len(one['hosts'])} node, "
           f"Linux {one['kernel'].split('-')[0]}")
    yield f"* {', '.join(about['library'] for about in known)}, all from PyPI"
    peers = record("peers", "mpich-2")["environment"]["peers"]
    yield (f"* Python {one['python']}, NumPy {one['numpy']}, mpi4py {one['mpi4py']}, "
           f"PyTorch {peers['gloo']}, thread level {one['thread_level'].upper()}")
    yield f"* {one['time'][:10]}, `hpccoll` {one['hpccoll']}, float32, sum, ordinary buffers"


def mean_ratio(run: str, collective: str, sizes: tuple[int, int]) -> float:
    """The geometric mean of the ratios of a collective, for sizes in bytes."""
    folder = "allreduce" if collective == "allreduce" else "others"
    return geometric_mean(p.ratio for p in select_clear(folder, run, "auto", collective, sizes))


#: Sizes of small and of large calls, as text and in bytes.
SIZES = {"up to 4 KiB": (0, SMALL), "8 KiB and more": (SMALL + 1, 1 << 40)}


def loop_ratios(run: str, collective: str, sizes: tuple[int, int]) -> list[float]:
    """The ratios of loops of one call on many ranks that share cores."""
    return [point["seconds"]["native"] / point["seconds"]["auto"]
            for entry in record("loops", run)["entries"] for point in entry["points"]
            if point["collective"] == collective and sizes[0] <= point["nbytes"] <= sizes[1]]


def loops() -> Iterator[str]:
    """Geometric means on many ranks of two cores."""
    columns = [f"{library}-{ranks}" for library in ("mpich", "openmpi") for ranks in (8, 16, 32)
               if (library, ranks) != ("mpich", 32)]  # its times differ too much, see the page
    heads_of = [f"{LIBRARIES[run.partition('-')[0]]}, {run.partition('-')[2]} ranks"
                for run in columns]
    rows = [(collective, words) for collective in (
        "allreduce", "reduce", "bcast", "allgather", "alltoall", "gather", "scatter",
        "reduce_scatter", "scan") for words in SIZES] + [("barrier", "")]
    yield from table(["collective", *heads_of], (
        [", ".join(filter(None, row))] + [
            number(geometric_mean(found)) if (found := loop_ratios(
                run, row[0], SIZES.get(row[1], (0, 0)))) else "-" for run in columns]
        for row in rows))


def summary() -> Iterator[str]:
    """Geometric means on two and on eight ranks: the table of the README."""
    rows = [(collective, words) for collective, words in (
        ("allreduce", "up to 4 KiB"), ("allreduce", "8 KiB and more"), ("bcast", "up to 4 KiB"),
        ("bcast", "8 KiB and more"), ("reduce_scatter", "8 KiB and more"),
        ("allgather", "8 KiB and more"), ("alltoall", "8 KiB and more"))]
    yield from table(["", *LIBRARIES.values(), "MPICH, 8 ranks"], (
        [f"{collective}, {words}"]
        + [number(mean_ratio(f"{library}-2", collective, SIZES[words])) for library in LIBRARIES]
        + [number(geometric_mean(loop_ratios("mpich-8", collective, SIZES[words])))]
        for collective, words in rows))


def claims() -> Iterator[str]:
    """What hpccoll does, one number each: the list of the README."""
    fast = sorted(mean_ratio(f"{library}-2", "allreduce", SIZES["up to 4 KiB"])
                  for library in LIBRARIES)
    kills = [each for path in sorted((DATA / "faults").glob("*-kill-*.json"))
             for each in json.loads(path.read_text(encoding="utf-8"))]
    right, slowest = sum(each["right"] for each in kills), max(each["seconds"] for each in kills)
    gloo = [each["ratio"] for each in record("torch", "mpich-2")["results"]
            if each["what"] == "DDP step"]
    yield ("- **Drop-in.** `hpccoll.Comm` is an `MPI.Intracomm`. The MPI library runs the calls "
           "that hpccoll does not make faster; they cost up to 1 us more.")
    yield (f"- **Fast.** An allreduce of up to 4 KiB on two ranks is {fast[0]:.1f} to "
           f"{fast[-1]:.1f} times as fast as with the MPI library alone.")
    yield (f"- **Errors instead of hangs.** In tests with a killed rank, {right} of {len(kills)} "
           f"other ranks named it, within {slowest:.1f} s.")
    yield ("- **Proved.** Every algorithm is a list of messages. hpccoll proves the list before it "
           "runs it, and can draw it and simulate it on 100,000 ranks.")
    yield (f"- **PyTorch.** DDP spends {min(gloo):.1f} to {max(gloo):.1f} times less time on "
           "communication than over Gloo.")


def allreduce() -> Iterator[str]:
    """Allreduce by size, every third power of two."""
    sizes = [8 << 3 * n for n in range(9)]
    yield from table(["bytes", *heads()], (
        [size(n)] + [number(select("allreduce", run, sizes=(n, n))[0].ratio) for run in runs()]
        for n in sizes))


def worst_and_best() -> Iterator[str]:
    """Of every collective the least and the largest ratio."""
    rows = []
    for collective, folder in (
            ("allreduce", "allreduce"), *((name, "others") for name in (
                "reduce_scatter", "reduce", "bcast", "allgather", "alltoall")),
            *((name, "small") for name in ("scan", "gather", "scatter", "barrier"))):
        cells = []
        for run in runs():
            chosen = sorted(select_clear(folder, run, "auto", collective), key=lambda p: p.ratio)
            cells.append(" to ".join(dict.fromkeys(
                number(p.ratio) for p in (chosen[0], chosen[-1]))))
        rows.append([collective, *cells])
    yield from table(["collective", *heads()], rows)


def registered() -> Iterator[str]:
    """Registered memory: ratio, and the part of the roofline where memory decides."""
    def cell(run: str, nbytes: int) -> str:
        point = select("registered", run, sizes=(nbytes, nbytes))[0]
        return number(point.ratio) + (f" / {point.limit:.2f}" if point.limit else "")

    sizes = [64 * KIB << 2 * n for n in range(6)]
    yield from table(["bytes", *heads()], (
        [size(n)] + [cell(run, n) for run in runs()] for n in sizes))


def executors() -> Iterator[str]:
    """Allreduce by size with either executor."""
    names = {"allreduce": "compiled", "python": "Python"}
    columns = [(folder, run) for run in runs(("mpich", "openmpi")) for folder in names]
    sizes = [8, 4 * KIB, 256 * KIB, 16 * MIB, 128 * MIB]
    yield from table(["bytes", *(
        f"{LIBRARIES[run.partition('-')[0]]}, {run.partition('-')[2]} ranks, {names[folder]}"
        for folder, run in columns)], (
        [size(n)] + [number(select(folder, run, sizes=(n, n))[0].ratio)
                     for folder, run in columns] for n in sizes))


def forms() -> Iterator[str]:
    """Persistent and lower-case calls, Gloo, and what a forwarded call costs."""
    def mean(folder: str, run: str, candidate: str, sizes: tuple[int, int]) -> str:
        return number(geometric_mean(p.ratio for p in select(folder, run, candidate, sizes=sizes)))

    rows = [["persistent, 8 B to 64 KiB, `recursive_doubling`"] + [
                mean("persistent", run, "recursive_doubling", (0, 64 * KIB)) for run in runs()],
            ["nonblocking, the same"] + [
                mean("nonblocking", run, "recursive_doubling", (0, 64 * KIB)) for run in runs()],
            ["lower case, one float"] + [
                mean("lower-case", run, "auto", (8, 8)) for run in runs()],
            ["lower case, arrays of 80 B to 8 MB"] + [
                mean("lower-case", run, "auto", (9, 1 << 40)) for run in runs()],
            ["Gloo / `auto`, 8 B to 32 KiB"] + [gloo(run, (0, 32 * KIB)) for run in runs()],
            ["Gloo / `auto`, 256 KiB to 64 MiB"] + [
                gloo(run, (33 * KIB, 1 << 40)) for run in runs()]]
    yield from table(["allreduce", *heads()], rows)


def gloo(run: str, sizes: tuple[int, int]) -> str:
    """The geometric mean of Gloo's times over ours; Intel MPI has no such record."""
    if not (DATA / "peers" / f"{run}.json").exists():
        return "-"
    return number(geometric_mean(over("peers", run, "auto", "gloo", sizes).values()))


def over(folder: str, run: str, candidate: str, other: str,
         sizes: tuple[int, int]) -> dict[Point, float]:
    """Times of another candidate divided by those of ``candidate``, by its points."""
    others = {(p.collective, p.nbytes): p.seconds
              for p in select(folder, run, other, sizes=sizes)}
    return {p: others[p.collective, p.nbytes] / p.seconds
            for p in select(folder, run, candidate, sizes=sizes)}


# -- bench fresh -------------------------------------------------------------------------------
def fresh_runs() -> list[str]:
    """The runs of ``bench fresh``: Intel MPI has none."""
    return runs(("mpich", "openmpi"))


def fresh() -> Iterator[str]:
    """New sizes in each call: geometric mean and worst class of sizes."""
    def cell(run: str, method: str) -> str:
        ratios = [each["plain_seconds"] / each["seconds"] for each in record("fresh", run)["sizes"]
                  if each["method"] == method]
        return f"{number(geometric_mean(ratios))} ({number(min(ratios))})"

    methods = dict.fromkeys(each["method"] for each in record("fresh", "mpich-2")["sizes"])
    yield from table(["method", *heads(("mpich", "openmpi"))], (
        [method] + [cell(run, method) for run in fresh_runs()] for method in methods))


def spellings() -> Iterator[str]:
    """Small calls by the spelling of their arguments: microseconds of plain mpi4py and ours."""
    found = {run: {tuple(each[name] for name in ("method", "buffer", "counts")): each
                   for each in record("fresh", run)["spellings"]} for run in fresh_runs()}
    yield from table(["method", "buffer", "counts", *heads(("mpich", "openmpi"))], (
        [*key] + [" / ".join(number(1e6 * found[run][key][name])
                             for name in ("plain_seconds", "seconds")) for run in found]
        for key in sorted(found["mpich-2"], key=lambda key: (key[0], key[2] != "", key[1:]))),
        left=3)


# -- goals -------------------------------------------------------------------------------------
class Reached(NamedTuple):
    """The number that counts for a goal, and the point where it was measured."""

    value: float
    place: str = ""


def measured(goal: dict[str, Any], run: str) -> Reached:
    """Compute what a record says of a goal."""
    source, statistic = goal["record"], goal["statistic"]
    folder, candidate = source["folder"], source["candidate"]
    sizes = tuple(source.get("sizes", (0, 1 << 40)))
    chosen = select(folder, run, candidate, source.get("collective"), sizes)
    if statistic == "geometric mean":
        return Reached(geometric_mean(p.ratio for p in chosen))
    values = {"ratio": lambda p: p.ratio, "limit": lambda p: p.limit,
              "microseconds": lambda p: p.seconds * 1e6}
    pairs: dict[Point, float]
    if source.get("over"):
        pairs = over(folder, run, candidate, source["over"], sizes)
    elif source.get("less"):
        base = {(p.collective, p.nbytes): p.seconds for p in points(folder, run)
                if p.candidate == source["less"]}
        pairs = {p: (p.seconds - base[p.collective, p.nbytes]) * 1e6 for p in chosen}
    else:
        pairs = {p: values[source.get("column", "ratio")](p) for p in chosen}
    pick = {"least": min, "most": max}[statistic]
    point = pick(pairs, key=lambda p: pairs[p])
    several = len({p.collective for p in chosen}) > 1
    return Reached(pairs[point], " ".join(
        [point.collective] * several + [size(point.nbytes)] * bool(point.nbytes)))


def goal_rows() -> Iterator[tuple[str, list[str]]]:
    """Every goal, library and number of ranks: its group and its row.

    Raises:
        ValueError: a goal that is not met has no reason.
    """
    for goal in json.loads((DATA / "goals.json").read_text(encoding="utf-8")):
        at_least = "at least" in goal
        bound = goal["at least" if at_least else "at most"]
        for run in goal["runs"]:
            library, _, ranks = run.rpartition("-")
            reached = (Reached(goal["reached"][run]) if "reached" in goal
                       else measured(goal, run))
            # As printed, so that the row does not contradict itself.
            shown = float(number(reached.value))
            met = shown >= bound if at_least else shown <= bound
            why = goal.get("why", {})
            reason = "" if met else why.get(run, why.get("all", ""))
            if not met and not reason:
                raise ValueError(f"{goal['goal']}, {run}: not met, and no word on why")
            yield goal["group"], [
                goal["goal"], f"{LIBRARIES[library]}, {ranks}",
                f"{'≥' if at_least else '≤'} {bound}", number(reached.value), reached.place,
                "met" if met else "**not met**", reason]


def goals() -> Iterator[str]:
    """All goals, group by group, with a count in front."""
    rows = list(goal_rows())
    met = sum("not" not in row[5] for _, row in rows)
    yield f"{met} of {len(rows)} are met."
    for group in dict.fromkeys(group for group, _ in rows):
        yield ""
        yield f"## {group}"
        yield ""
        head = ["goal", "library, ranks", "must reach", "reached", "at", "", "why"]
        yield f"| {' | '.join(head)} |"
        yield "|---|---|---:|---:|---|---|---|"
        before = ""
        for name, row in rows:
            if name == group:
                # A goal of several rows is named in the first.
                yield f"| {' | '.join([row[0] if row[0] != before else '', *row[1:]])} |"
                before = row[0]


# -- training ----------------------------------------------------------------------------------
def training_calls() -> Iterator[str]:
    """Calls of torch.distributed: Gloo's time over ours, by size; and steps of DDP."""
    for ranks in 2, 4:
        found = record("torch", f"mpich-{ranks}")["results"]
        ratios = {(each["what"], each["nbytes"]): each["ratio"] for each in found}
        sizes = list(dict.fromkeys(n for what, n in ratios if what != "DDP step"))
        names = list(dict.fromkeys(what for what, _ in ratios if what != "DDP step"))
        yield from table([f"Gloo / hpccoll, {ranks} ranks", *map(size, sizes)], (
            [f"`{name}`"] + [number(ratios[name, n]) for n in sizes] for name in names))
        yield ""
    found = record("torch", "mpich-2")["results"]
    yield from table(["DDP, parameters", "alone", "over Gloo", "over hpccoll", "communication"], (
        [f"{each['nbytes'] / 1e6:.0f} MB"] + [
            f"{1e3 * each['seconds'][name]:.1f} ms" for name in (
                "no communication", "gloo", "hpccoll")] + [number(each["ratio"])]
        for each in found if each["what"] == "DDP step"))


def training_summary() -> Iterator[str]:
    """Steps by hpccoll, DDP over Gloo, and Horovod."""
    names = ["exchange", "ddp", "ddp:gloo", "horovod"]
    rows = []
    for runs_, words in ((("node-25M",), "25 MiB, 2 ranks of a node, nothing to hide behind"),
                         (("node-100M",), "100 MiB, the same"),
                         (("hosts-gloo", "hosts-horovod"),
                          "25 MiB, 4 nodes of 1 Gbit/s, backward pass of 400 ms")):
        found = {each["candidate"]: each["median_seconds"]
                 for run in runs_ for each in record("steps", run)["results"]}
        rows.append([words] + [f"{1e3 * found[name]:.0f}" for name in names])
    yield from table(["gradients", "`Exchange`", "DDP", "DDP over Gloo", "Horovod"], rows)


def training_steps() -> Iterator[str]:
    """Steps with emulated backward passes on one node and on hosts: what communication adds."""
    rows = []
    for run in ("node-2M", "node-25M", "node-100M", "hosts-gloo", "hosts-horovod"):
        about = record("steps", run)
        hosts = len(about["environment"]["hosts"])
        where = f"{about['environment']['ranks']} ranks, {hosts} node{'s' * (hosts > 1)}"
        for each in about["results"]:
            if each["candidate"] != "none":
                rows.append([where, size(about["nbytes"] // MIB * MIB), f"`{each['candidate']}`",
                             f"{1e3 * each['median_seconds']:.0f} ms",
                             f"{1e3 * each['exposed_seconds']:.0f} ms",
                             f"{100 * each['exposed_part']:.1f} %"])
    yield from table(["where", "gradients", "candidate", "step", "exposed", "of the step"], rows,
                     left=3)


def training_arrays() -> Iterator[str]:
    """Many small arrays: what a step costs beside one allreduce of all bytes."""
    found = {each["candidate"]: each["median_seconds"]
             for each in record("steps", "small-arrays")["results"]}
    one = found["allreduce"]
    yield from table(["candidate", "step", "of one allreduce"], (
        [f"`{name}`", f"{1e3 * seconds:.2f} ms", number(seconds / one)]
        for name, seconds in found.items() if name != "none"))


# -- programs of other projects ----------------------------------------------------------------
def applications_machine() -> Iterator[str]:
    """Machine, versions and date of ``make applications``."""
    known = record("applications", "results")
    about = known["environment"]
    yield (f"* {about['cpu']}, {about['cores']} cores, {about['memory_bytes'] / 2 ** 30:.0f} GiB, "
           f"1 node, Linux {about['kernel'].split('-')[0]}")
    yield f"* {', '.join(about['libraries'].values())}, from PyPI"
    yield (f"* Python {about['python']}, NumPy {about['numpy']}, mpi4py {about['mpi4py']}, "
           f"`hpccoll` {about['hpccoll']}, {about['time'][:10]}")
    loads = [one[kind]["others"] for one in known["results"] for kind in ("plain", "hpccoll")
             if "others" in one[kind]]
    others = (f"other programs used at most {max(loads):.0%} of the cores" if loads else
              f"load of the machine at the start: {about['load']:.1f}")
    times = "once" if known["rounds"] == 1 else f"{known['rounds']} times"
    yield (f"* every program ran {times} plain and {times} with hpccoll, in turns, one thread a "
           f"rank; {others}")


def applications() -> Iterator[str]:
    """A row for each program, library and number of ranks."""
    rows = []
    for one in record("applications", "results")["results"]:
        plain, ours, profile = one["plain"], one["hpccoll"], one["profile"]
        calls = ("-" if not profile else "0" if not profile["calls"] else
                 f"{profile['calls']:,}, {profile['served'] / profile['calls']:.0%}")
        numbers = ("-" if not plain["numbers"] else "vary" if not one["repeats"] else
                   "differ" if any(
                       text.startswith("numbers") for text in one["differences"]) else "same")
        times = [each["median_seconds"] for each in (plain, ours)]
        rows.append([one["program"], f"{LIBRARIES[one['library']]}, {one['ranks']}",
                     f"{plain['passed']} / {plain['tests']}", f"{ours['passed']} / {ours['tests']}",
                     numbers, calls, *(f"{each:.1f}" for each in times),
                     f"{times[1] / times[0]:.2f}",
                     f"{plain['mebibytes']:.0f}", f"{ours['mebibytes']:.0f}"])
    yield from table(["program", "library, ranks", "passed plain", "passed hpccoll", "numbers",
                      "calls", "s plain", "s hpccoll", "ratio", "MiB plain", "MiB hpccoll"], rows,
                     left=2)


def applications_programs() -> Iterator[str]:
    """What each program is, and why one was not installed."""
    rows = []
    for one in record("applications", "results")["programs"]:
        problems = sorted({f"not installed: {each['problem']}"
                           for each in one["installed"].values() if each["problem"]})
        rows.append([f"{one['name']} {one['version']}".strip(), one["timed"],
                     "; ".join(problems).replace("|", "/") or one["right"]])
    yield from table(["program", "the job", "right if"], rows, left=3)


def applications_osu() -> Iterator[str]:
    """The OSU demos: the library's time over ours, geometric mean and worst size."""
    ratios: dict[str, dict[str, dict[int, float]]] = {}
    for one in record("applications", "results")["results"]:
        plain, ours = one["plain"].get("times", {}), one["hpccoll"].get("times", {})
        for name in plain.keys() & ours.keys():
            collective, nbytes = name.split()
            head = f"{LIBRARIES[one['library']]}, {one['ranks']} ranks"
            ratios.setdefault(collective, {}).setdefault(head, {})[int(nbytes)] = (
                plain[name] / ours[name])
    columns = sorted({head for found in ratios.values() for head in found})

    def cell(found: dict[int, float]) -> str:
        worst = min(found, key=lambda nbytes: found[nbytes])
        return (f"{number(geometric_mean(found.values()))} ({number(found[worst])}, "
                f"{size(worst)})")
    yield from table(["collective", *columns], (
        [name] + [cell(found[head]) for head in columns] for name, found in sorted(ratios.items())))


def applications_differences() -> Iterator[str]:
    """What hpccoll changed."""
    changed = [one for one in record("applications", "results")["results"] if one["differences"]]
    if not changed:
        yield "None."
    for one in changed:
        yield (f"* {one['program']}, {LIBRARIES[one['library']]}, {one['ranks']} ranks: "
               f"{'; '.join(f'`{text}`' for text in one['differences'])}")


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "machine": machine, "disturbed": disturbed, "summary": summary, "claims": claims,
    "allreduce": allreduce,
    "worst-and-best": worst_and_best, "executors": executors,
    "registered": registered, "forms": forms, "loops": loops,
    "training-summary": training_summary, "training-calls": training_calls,
    "training-steps": training_steps, "training-arrays": training_arrays, "goals": goals,
    "applications-machine": applications_machine, "applications": applications,
    "applications-programs": applications_programs, "applications-osu": applications_osu,
    "fresh": fresh, "spellings": spellings,
    "applications-differences": applications_differences}


# -- the pages ---------------------------------------------------------------------------------
def filled(text: str) -> str:
    """The text of a page with every block as the data have it now.

    Raises:
        KeyError: a block has a name that ``BLOCKS`` lacks.
    """
    return BLOCK.sub(lambda m: m[1] + "\n" + "\n".join(BLOCKS[m[2]]()) + "\n\n" + m[4], text)


def main(words: list[str]) -> int:
    """Write the pages, or only check them; return the exit status."""
    stale = []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            stale.append(name)
            if "--check" not in words:
                page.write_text(after, encoding="utf-8")
    if stale:
        print(*stale, sep="\n")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
