"""``hpccoll verify``: prove every algorithm of the table, for every number of ranks.

Roots and parameters are a sample: first, middle and last rank; the default and values around
it. Up to 16 ranks every combination is proved, beyond two of them, others for each number of
ranks. Up to 32 ranks each schedule is proved for uneven and empty blocks, in place and in
segments too, beyond every fourth is, and the others with one element per block. ``--thorough``
proves everything for all. What the table claims is proved along: closed forms, rank order, and
the same bits on all ranks unless an algorithm is for exact operators only.

Exit status: 0, 1 where something is not proved, 2 for bad options, 130 when interrupted, with what
is proved by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing
from itertools import islice, product
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpccoll.algorithms import ALGORITHMS, Algorithm, find, schedule
from hpccoll.algorithms.outside import display_name, parameters
from hpccoll.cli.options import (
    ALGORITHM,
    AlgorithmChoice,
    collectives_of,
    names,
    split_collectives,
)
from hpccoll.cli.ranks import INTERRUPTED
from hpccoll.cli.terminal import line_console
from hpccoll.errors import ArgumentError, HpccollError, ProofError
from hpccoll.explain.columns import FittedTable, Header
from hpccoll.ir.collectives import COLLECTIVES, collective_named
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import Proof, prove, verify
from hpccoll.units import count_text, numbers

#: Layouts that hierarchical algorithms are proved on: flat ends, regular, deep, ragged, uneven,
#: and with ranks dealt out over the groups.
SHAPES = ("1x4", "4x1", "2x2", "2x3", "3x4", "4x8", "8x4", "2x2x2", "3x2x2", "4x2x4", "2x2x2x2",
          "3,5,4", "1,7", "5,1,2", "(2,3),(4)", "(1,2),(3,1),(2)", "2x(3,2)", "2x2@0,2,1,3",
          "4x2@0,4,1,5,2,6,3,7", "(2,3),(4)@8,0-6/2,1-7/2")
#: The columns of the table.
COLUMNS = (
    Header("algorithm", right=False),
    Header("proved", meaning="how many schedules: one per number of ranks, root and parameter"),
    Header("rank order", right=False,
           meaning="kept, or any: for commutative operators only"),
    Header("replicas", right=False,
           meaning="same bits: all ranks get the same bits of a rounded sum"),
    Header("rounds", right=False,
           meaning="longest chain of dependent messages, on the largest number of ranks"))
#: Up to this many ranks every combination of roots and parameters is proved.
COMBINED = 16
#: Up to this many ranks every schedule is proved for all kinds of block sizes.
VARIED = 32


class ProofTask(NamedTuple):
    """One algorithm on one number of ranks, or on one layout."""

    collective: str
    algorithm: str
    size: int
    topology: str | None
    thorough: bool
    given: tuple[tuple[str, int], ...] = ()


class ProofOutcome(NamedTuple):
    """Result of a job; ``problem`` is empty if all its schedules were proved."""

    job: ProofTask
    schedules: int = 0
    rank_order: bool = True
    replicas: bool = True
    rounds: int = 0
    problem: str = ""


@click.command("verify")
@click.argument("brought", nargs=-1, type=ALGORITHM,
                metavar="[COLLECTIVE|NAME|FILE.py:NAME]...")
@click.option("--ranks", "--size", default="1-64", show_default=True,
              help="Numbers of ranks: 1-16,32,64.")
@click.option("--collective", "collectives", multiple=True, metavar="NAMES",
              help="Only these collectives, separated by commas.")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAMES",
              help="Only these algorithms, separated by commas.")
@click.option("--topology", "topologies", multiple=True, metavar="LAYOUT",
              help="Prove only hierarchical algorithms, on this layout (2x4, 3,5,4); repeatable.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the first named algorithm, such as k=4; repeatable.")
@click.option("--thorough", is_flag=True,
              help="Every combination of roots, parameters and block sizes for all ranks.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes. Default: one per core.")
@click.pass_context
def command(context, brought, ranks, collectives, algorithms, topologies, params, thorough, jobs):
    """Prove that algorithms do what their collectives promise: all, or those of your own.

    Numbers of ranks that an algorithm of your own says it does not fit are left out.

    \b
    hpccoll verify
    hpccoll verify allreduce bcast --ranks 1-16,1000
    hpccoll verify --topology 4x8 --topology 3,5,4
    hpccoll verify my.py:torus --size 8 -p x=2 -p y=2 -p z=2
    """
    layouts = [str(Topology.parse(t)) for t in topologies]
    named, brought = split_collectives(brought)
    wanted = list(dict.fromkeys([*named, *map(collective_named, names(collectives))]))
    if brought:
        work = select_brought(numbers("--ranks", ranks), wanted, brought, layouts, thorough,
                              parameters(params))
    elif params:
        raise ArgumentError("--param", "requires NAME or FILE.py:NAME",
                            "hpccoll proves a sample of the parameters of its own algorithms")
    else:
        work = select(numbers("--ranks", ranks), wanted, names(algorithms), layouts, thorough)
    console = line_console()
    outcomes = []
    interrupted = False
    columns = (TextColumn("proving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(work))
        try:
            with closing(prove_all(work, min(jobs or cores(), len(work)))) as proofs:
                for outcome in proofs:
                    outcomes.append(outcome)
                    if outcome.problem:
                        break
                    collective, algorithm, size, topology, *_ = outcome.job
                    progress.update(task, advance=1,
                                    description=f"{collective} {algorithm} {topology or size}")
        except KeyboardInterrupt:
            interrupted = True
    if outcomes and outcomes[-1].problem:
        click.echo(f"hpccoll: not proved: {outcomes[-1].problem}", err=True)
        context.exit(1)
    if outcomes:
        for line in summary(outcomes, console.width):
            console.print(line, style="dim" if line.startswith("#") else "", soft_wrap=True)
        console.print(f"{count_text(sum(v.schedules for v in outcomes), 'schedule')} proved")
    if interrupted:
        click.echo(f"hpccoll: verify: interrupted: {len(outcomes)} of {len(work)} cases (an "
                   "algorithm, a number of ranks) are proved", err=True)
        context.exit(INTERRUPTED)


def select(ranks: Sequence[int], collectives: Sequence[str], algorithms: Sequence[str],
           topologies: Sequence[str], thorough: bool = False) -> list[ProofTask]:
    """List the jobs that the options ask for, small ones first."""
    for collective in collectives:
        if collective not in ALGORITHMS:
            raise ArgumentError.unknown_word("--collective", collective, ALGORITHMS)
    known = dict.fromkeys(name for table in ALGORITHMS.values() for name in table)
    for algorithm in algorithms:
        if algorithm not in known:
            raise ArgumentError.unknown_word("--algorithm", algorithm, known)
    shapes = [(Topology.parse(t).size, t) for t in topologies or SHAPES]
    if not topologies:
        shapes = [shape for shape in shapes if shape[0] in ranks]
    work = []
    for collective in collectives or ALGORITHMS:
        for name, entry in ALGORITHMS[collective].items():
            if algorithms and name not in algorithms:
                continue
            if entry.hierarchical:
                work += [ProofTask(collective, name, size, t, thorough) for size, t in shapes]
            elif not topologies:
                work += [ProofTask(collective, name, size, None, thorough) for size in ranks]
    if not work:
        raise ArgumentError("verify", "the options select no case",
                            "use --topology with hierarchical algorithms, and only with them")
    return sorted(work, key=lambda job: job.size)


def select_brought(ranks: Sequence[int], collectives: Sequence[str],
                   brought: Sequence[AlgorithmChoice],
                   topologies: Sequence[str], thorough: bool,
                   params: dict[str, int]) -> list[ProofTask]:
    """List the jobs for algorithms of one's own, small ones first."""
    work: list[ProofTask] = []
    for each in brought:
        for collective in collectives or collectives_of(each.name):
            given = {**each.params, **params}
            entry, refused = each.entry(collective), ""
            shapes: list[tuple[int, str | None]] = [(size, None) for size in ranks]
            if entry.hierarchical:
                shapes = [(Topology.parse(t).size, t) for t in topologies or SHAPES]
                shapes = [each for each in shapes if topologies or each[0] in ranks]
            tasks = []
            for size, layout in shapes:
                try:
                    schedule(collective, each.name, size, topology=layout, **given)
                except ArgumentError as error:
                    # Only a number of ranks may be left out; all else is wrong everywhere.
                    if error.argument != "size":
                        raise
                    refused = refused or str(error)
                    continue
                tasks.append(ProofTask(collective, each.name, size, layout, thorough,
                                       tuple(given.items())))
            if not tasks:
                raise ArgumentError("--ranks", f"{each.name} supports none of them: {refused}")
            work += tasks
    return sorted(work, key=lambda job: job.size)


def schedules(job: ProofTask) -> Iterator[tuple[Schedule, bool]]:
    """Make the schedules of a job, and say which to prove for all kinds of block sizes."""
    entry = find(job.collective, job.algorithm)
    roots = sorted({0, job.size // 2, job.size - 1}) if COLLECTIVES[job.collective].rooted else [0]
    given = dict(job.given)
    sampled = {name: sorted({default, *(entry.variants[name].measured + entry.variants[name].edges
                                        if name in entry.variants else ())})
               for name, default in entry.params.items() if name not in given}
    chosen = list(product(roots, *sampled.values()))
    # Seeded with the job: the same sample on every run, another one for every number of ranks.
    draw = Random(" ".join(map(str, job[:5])))
    if job.size > COMBINED and not job.thorough:
        chosen = draw.sample(chosen, min(2, len(chosen)))
    for root, *params in chosen:
        yield (schedule(job.collective, job.algorithm, job.size, root=root, topology=job.topology,
                        **dict(zip(sampled, params)), **given),
               job.thorough or job.size <= VARIED or not draw.randrange(4))


def prove_job(job: ProofTask) -> ProofOutcome:
    """Prove the schedules of a job; errors come back as text, which any process can receive."""
    outcome = ProofOutcome(job)
    entry = find(job.collective, job.algorithm)
    try:
        for built, varied in schedules(job):
            proof = verify(built) if varied else prove(
                built, built.collective, next(iter(cases(built, built.collective))))
            check_claims(built, entry, proof)
            outcome = outcome._replace(
                schedules=outcome.schedules + 1,
                rank_order=outcome.rank_order and proof.rank_order,
                replicas=outcome.replicas and proof.replicas_identical,
                rounds=max(outcome.rounds, proof.rounds))
    except HpccollError as error:
        return outcome._replace(problem=str(error))
    return outcome


def check_claims(built: Schedule, entry: Algorithm, proof: Proof) -> None:
    """Compare what the table says about an algorithm with what was proved."""
    for holds, problem in (
            (built.rounds in (None, proof.rounds),
             f"has {proof.rounds} rounds, the closed form gives {built.rounds}"),
            (built.sent in (None, proof.sent),
             f"sends {proof.sent} blocks from the busiest rank, the closed form gives "
             f"{built.sent}"),
            (proof.rank_order or not entry.rank_order or _is_permuted(built.topology),
             "contributions are not combined in rank order, but the table has rank_order"),
            (proof.replicas_identical or entry.exact_only,
             "ranks combine contributions in different orders, so floating-point results may "
             "differ, but the table does not have exact_only")):
        if not holds:
            raise ProofError(problem, schedule=built.title)


def _is_permuted(topology: str | Topology | None) -> bool:
    """Return True if ranks have another order, in which no reduction keeps rank order."""
    return topology is not None and Topology.parse(topology).order is not None


def prove_all(work: Sequence[ProofTask], jobs: int) -> Iterator[ProofOutcome]:
    """Prove jobs in this process or in several, and yield verdicts as they come."""
    if jobs == 1:
        yield from map(prove_job, work)
        return
    # Fresh processes: forking a process that may have threads can deadlock.
    with ProcessPoolExecutor(jobs, get_context("spawn"), die_quietly) as pool:
        queue = iter(work)

        def submit(number: int) -> set[Future[ProofOutcome]]:
            """Submit the next jobs; a new process starts with Ctrl-C blocked."""
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return {pool.submit(prove_job, each) for each in islice(queue, number)}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        running = submit(4 * jobs)
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= submit(len(done))
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def die_quietly() -> None:
    """Let Ctrl-C, which reaches every process, end a worker without a traceback.

    This includes a Ctrl-C that arrives while the worker starts.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def summary(outcomes: Sequence[ProofOutcome], width: int) -> list[str]:
    """The table: how much of each algorithm was proved, what holds for all of it; the legend."""
    found: dict[str, dict[str, list[ProofOutcome]]] = {}
    for outcome in outcomes:
        job = outcome.job
        name = ":".join([job.algorithm, *(f"{key}={value}" for key, value in job.given)])
        found.setdefault(job.collective, {}).setdefault(name, []).append(outcome)
    rows = []
    for collective, known in ALGORITHMS.items():
        mine = found.get(collective, {})
        rows += [[collective, "", "", "", ""]] if mine else []
        listed = [*(name for name in known if name in mine), *(n for n in mine if n not in known)]
        rows += [[f"  {display_name(name)}", *_cells(collective, mine[name])] for name in listed]
    table = FittedTable(COLUMNS, rows, width)
    return [*table.lines(), *(f"# {line}" for line in table.legend())]


def _cells(collective: str, mine: Sequence[ProofOutcome]) -> list[str]:
    """Return the properties of all schedules of one algorithm."""
    ordered = [v for v in mine if not _is_permuted(v.job.topology)] or mine
    order = "kept" if all(v.rank_order for v in ordered) else "any"
    replicas = "same bits" if all(v.replicas for v in mine) else "may differ"
    most = max(mine, key=lambda v: (v.job.size, v.rounds))
    return [str(sum(v.schedules for v in mine)),
            order if COLLECTIVES[collective].reduces else "",
            replicas if collective == "allreduce" else "",
            f"{most.rounds} at {most.job.topology or most.job.size}"]
