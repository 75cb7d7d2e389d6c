"""``hpccoll synthesize``: find a schedule for a small world by a solver.

Exit status: 0, 1 where no such schedule exists, 2 for bad options or when it was not found out, 130
when interrupted.
"""

from __future__ import annotations

import json
from time import perf_counter

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hpccoll.cli.options import SECONDS, write_text
from hpccoll.cli.ranks import stoppable
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_json
from hpccoll.ir.collectives import collective_named
from hpccoll.proof.verifier import verify
from hpccoll.simulator import catalog, simulate
from hpccoll.tools.synthesis import FOUND, synthesize, world
from hpccoll.units import size, time_text

#: Rounds that are tried where none are given.
MOST = 8


@click.command("synthesize")
@click.argument("collective", metavar="|".join(FOUND))
@click.option("--topology", required=True, metavar="WORLD",
              help="A layout such as 2x4, ring:8, or dgx1.")
@click.option("--machine", metavar="NAME|FILE",
              help="For a layout: how much a group's link carries, and the time.")
@click.option("--rounds", type=click.IntRange(1, MOST),
              help="Rounds of messages (SCCL's steps); an allreduce is a reduce-scatter and an "
                   "allgather of so many each. Default: as few as can be.")
@click.option("--budget", type=click.IntRange(min=1),
              help="Units of time that the rounds have together (SCCL's rounds): in one a link "
                   "carries one chunk. Default: as few as can be.")
@click.option("--chunks", type=click.IntRange(min=1), default=1, show_default=True,
              help="Parts of what a rank owns; of vectors only.")
@click.option("--ports", type=click.IntRange(min=1), default=1, show_default=True,
              help="Chunks that a rank of a layout sends, and receives, in a unit.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of a bcast.")
@click.option("--seconds", type=SECONDS, default=60.0, show_default=True,
              help="When to give up.")
@click.option("--nbytes", default="1M", show_default=True, help="Bytes to simulate.")
@click.option("-o", "--output", metavar="FILE.json",
              help="Where to write the schedule; verify, explain, simulate and bench take it.")
@click.pass_context
def command(context, collective, topology, machine, rounds, budget, chunks, ports, root, seconds,
            nbytes, output):
    """Find a schedule of so many rounds, prove it, and write it down; or show that none exists.

    \b
    hpccoll synthesize allgather --topology ring:6 -o ring6.json
    hpccoll synthesize allreduce --topology 2x4 --machine hdr --rounds 3 -o a.json
    hpccoll synthesize allreduce --topology dgx1 --rounds 2 --budget 3 --chunks 2
    """
    known = None if machine is None else catalog.find(machine)
    collective = collective_named(collective)
    place = world(topology, known, ports)
    moved = size("--nbytes", nbytes)
    if budget is not None and rounds is None:
        raise ArgumentError("--budget", "means nothing without --rounds")
    console = Console(stderr=True)

    def search(rounds, units):
        """Show what is searched, and for how long, where there is a terminal."""
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
                      console=console, transient=True, disable=not console.is_terminal) as line:
            line.add_task(f"searching schedules of {rounds} rounds and {units} units")
            return synthesize(collective, place, rounds, units, chunks, root, seconds, stopped)

    made = None
    with stoppable() as stopped:
        if rounds is None:
            # Units enough for everything show how few rounds there can be.
            enough = place.size * chunks
            rounds = next((r for r in range(1, MOST + 1)
                           if search(r, max(enough, r)) is not None), MOST)
        for units in range(rounds, rounds + place.size * chunks) if budget is None else (budget,):
            start = perf_counter()
            made = search(rounds, units)
            took = perf_counter() - start
            what = (f"{collective} on {topology} in {rounds} rounds, {units} units, "
                    f"{chunks} chunk{'s' * (chunks > 1)}")
            if made is not None:
                proof = verify(made)
                click.echo(f"{what}: found in {took:.1f} s and proved; at most {proof.sent} blocks "
                           f"of {max(made.nblocks, made.size)} from one rank")
                break
            click.echo(f"{what}: there is none ({took:.1f} s)")
    if made is None:
        context.exit(1)
    if known is not None:
        layout = topology if topology[0].isdigit() else None
        click.echo(f"simulated on {known.name}, {nbytes}: "
                   f"{time_text(simulate(made, moved, known, layout).seconds)}")
    if output is not None:
        write_text(output, json.dumps(as_json(made), indent=1) + "\n")
