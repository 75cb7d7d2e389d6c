"""The bench: every program, library and number of ranks, plain and with hpccoll in turns."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from applications import environments, jobs
from applications.environments import LIBRARIES
from applications.jobs import Outcome, Place
from applications.program import Program

FORMAT = "hpccoll applications 1"
#: Differences that the record names, at most.
NAMED = 8


def measure(programs: Sequence[Program], library_names: Iterable[str], ranks: Iterable[int],
            rounds: int, folder: Path, say: Callable[[str], None],
            keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Install and run everything; return the record.

    Args:
        programs: what to run.
        library_names: keys of :data:`environments.LIBRARIES`.
        ranks: numbers of ranks.
        rounds: jobs of each candidate.
        folder: environments, sources and outputs.
        say: prints a line of progress.
        keep: receives the record after each program, so that an interrupted bench leaves one.
    """
    made = {name: environments.create(name, folder) for name in library_names}
    record: dict[str, Any] = {"format": FORMAT, "environment": about(made), "rounds": rounds,
                              "programs": [describe(program) for program in programs],
                              "results": []}
    for program, entry in zip(programs, record["programs"]):
        for library, environment in made.items():
            installed = environments.install(program, environment)
            entry["installed"][library] = installed._asdict()
            if installed.problem:
                say(f"{program.name}, {LIBRARIES[library]}: not installed: {installed.problem}")
                continue
            sources = None
            if program.sdist:
                try:
                    sources = environments.sources(program, environment, folder)
                except LookupError as error:
                    entry["installed"][library]["problem"] = str(error)
                    say(f"{program.name}: {error}")
                    continue
            for count in ranks:
                if program.ranks[0] <= count <= program.ranks[1]:
                    place = Place(environment, count, folder / "job", sources)
                    result = compare(program, place, rounds)
                    record["results"].append(result)
                    say(line(result))
        keep(record)
    record["environment"].update(about(made))
    keep(record)
    return record


def compare(program: Program, place: Place, rounds: int) -> dict[str, Any]:
    """Run one program once with a profile, then plain and with hpccoll in turns."""
    profile = place.folder.with_name("profile.json")
    profile.unlink(missing_ok=True)
    # First, and not timed: it writes the bytecode of the program and fills the file cache.
    jobs.run(program, "hpccoll", place, profile)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in jobs.CANDIDATES}
    for turn in range(rounds):
        names = list(outcomes)
        for name in names[::-1] if turn % 2 else names:
            outcomes[name].append(jobs.run(program, name, place))
    return {"program": program.name, "library": place.environment.name, "ranks": place.ranks,
            **{name: summary(found) for name, found in outcomes.items()},
            "profile": jobs.served(profile),
            "repeats": repeats(outcomes["plain"], program.tolerance),
            "differences": differences(outcomes["plain"], outcomes["hpccoll"], program.tolerance)}


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Summarize the jobs of a candidate; a test passes if it does in every job."""
    passes = passes_of(outcomes)
    return {"statuses": [one.status for one in outcomes],
            "seconds": [round(one.seconds, 3) for one in outcomes],
            "median_seconds": round(statistics.median(one.seconds for one in outcomes), 3),
            "processor_seconds": round(
                statistics.median(one.processor_seconds for one in outcomes), 3),
            "others": round(max(one.others for one in outcomes), 3),
            "mebibytes": round(max(one.mebibytes for one in outcomes), 1),
            "passed": sum(passes.values()), "tests": len(passes),
            "failed": sorted(name for name, passed in passes.items() if not passed)[:NAMED],
            "numbers": outcomes[0].numbers[:NAMED],
            "times": {name: statistics.median(one.times[name] for one in outcomes
                                              if name in one.times)
                      for name in outcomes[0].times}}


def passes_of(outcomes: Iterable[Outcome]) -> dict[str, bool]:
    """Return name of a test -> True if it passed in all jobs that ran it."""
    passes: dict[str, bool] = {}
    for one in outcomes:
        for name, passed in one.passes.items():
            passes[name] = passes.get(name, True) and passed
    return passes


def differences(plain: Sequence[Outcome], ours: Sequence[Outcome],
                tolerance: float) -> list[str]:
    """Describe what hpccoll changed: exit status, passes, numbers."""
    found = []
    status = [next(filter(None, (one.status for one in jobs)), 0) for jobs in (plain, ours)]
    if status[0] != status[1]:
        found.append(f"exit status {status[1]}, plain {status[0]}")
    before, after = passes_of(plain), passes_of(ours)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            words = {True: "passes", False: "fails", None: "did not run"}
            found.append(f"{name}: {words[after.get(name)]}, plain {words[before.get(name)]}")
    if repeats(plain, tolerance):
        other = next((one.numbers for one in ours
                      if not same(one.numbers, plain[0].numbers, tolerance)), None)
        if other is not None:
            found.append(f"numbers {other[:3]}, plain {plain[0].numbers[:3]}")
    return found[:NAMED]


def repeats(outcomes: Sequence[Outcome], tolerance: float) -> bool:
    """Return True if all jobs of a candidate have the same numbers."""
    return all(same(one.numbers, outcomes[0].numbers, tolerance) for one in outcomes)


def same(one: Sequence[float], other: Sequence[float], tolerance: float) -> bool:
    """Compare numbers, within a relative tolerance; NaN is equal to NaN."""
    return len(one) == len(other) and all(
        a == b or a != a and b != b or abs(a - b) <= tolerance * max(abs(a), abs(b))
        for a, b in zip(one, other))


def describe(program: Program) -> dict[str, Any]:
    """Return what the page says of a program."""
    return {"name": program.name, "version": program.version, "right": program.right,
            "timed": program.timed, "installed": {}}


def about(made: dict[str, Path]) -> dict[str, Any]:
    """Return machine, date and versions."""
    known = {name: environments.versions(path) for name, path in made.items()}
    first = next(iter(known.values()))
    return {"cpu": cpu(), "cores": os.cpu_count(), "kernel": platform.release(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S"), "load": os.getloadavg()[0],
            "libraries": {name: f"{LIBRARIES[name]} {found.get(name, '')}".strip()
                          for name, found in known.items()},
            **{name: first.get(name) for name in ("python", "numpy", "mpi4py", "hpccoll")}}


def cpu() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((text.partition(":")[2].strip() for text in lines
                 if text.startswith("model name")), platform.processor())


def line(result: dict[str, Any]) -> str:
    """Describe a result in one line."""
    plain, ours = result["plain"], result["hpccoll"]
    profile = result["profile"] or {"served": "?", "calls": "?"}
    text = (f"{result['program']}, {LIBRARIES[result['library']]}, {result['ranks']} ranks: "
            f"passed {plain['passed']}/{plain['tests']} plain, {ours['passed']}/{ours['tests']} "
            f"hpccoll; {profile['served']} of {profile['calls']} calls; "
            f"{plain['median_seconds']:.1f} s plain, {ours['median_seconds']:.1f} s hpccoll; "
            f"{plain['mebibytes']:.0f} MiB plain, {ours['mebibytes']:.0f} MiB hpccoll")
    return "\n  ".join([text, *result["differences"]])
