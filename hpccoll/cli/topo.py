"""``hpccoll topo``: where the ranks are, as a tree or JSON, and what links cost.

Exit status: 0, 2 for bad options and unusable files, 130 when interrupted, with the pairs that
were measured by then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from hpccoll.cli.options import check_outputs, write_text
from hpccoll.cli.ranks import (
    INTERRUPTED,
    RankCommand,
    abort,
    agree_on_rank_0,
    complain,
    ignore_progress,
    stoppable,
)
from hpccoll.machine.launcher import require_mpi

SCHEMA = "hpccoll-topo-1"


@click.command("topo", cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", default="", metavar="FILE",
              help="Switches, as in Slurm's topology.conf. Default: HPCCOLL_NETWORK, or Slurm's "
                   "variables.")
@click.option("--measure/--no-measure", "measured", default=True, show_default=True,
              help="Measure latency and bandwidth between ranks, pair by pair.")
@click.option("--most", type=click.IntRange(min=2), default=32, show_default=True, metavar="N",
              help="Ranks to measure; of more ranks, a sample of near and far ones.")
@click.option("--json", "json_path", metavar="FILE", help="Write JSON; - is standard output.")
def command(network: str, measured: bool, most: int, json_path: str | None) -> None:
    """Show the machine under this job: switches, nodes, sockets, NUMA groups, caches, ranks.

    \b
    mpiexec -n 4 python -m hpccoll topo
    srun --mpi=pmi2 python -m hpccoll topo --json machine.json
    """
    with stoppable() as stopped:
        MPI = require_mpi(steps=True)
        from hpccoll.tools import topo

        comm = MPI.COMM_WORLD
        agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
        machine = topo.survey(comm, network)
        try:
            links, missing = None, 0
            if measured and comm.Get_size() > 1:
                links = _measure(comm, topo.choose_ranks(comm.Get_size(), most), json_path == "-",
                                 stopped)
                missing = comm.bcast(links and links.missing)
            if comm.Get_rank() == 0:
                _show(machine, links, json_path)
        except Exception as error:
            # A rank that fails alone must not leave the others waiting for it.
            abort(comm, error)
    if missing:
        complain("topo", f"interrupted: {missing} pairs of ranks were not measured")
        sys.exit(INTERRUPTED)


def _measure(comm: Any, ranks: tuple[int, ...], quiet: bool, stopped: Callable[[], bool]) -> Any:
    """Measure, with a bar on terminals."""
    from hpccoll.cli import terminal
    from hpccoll.tools.topo import measure

    if comm.Get_rank() != 0:
        return measure(comm, ranks, ignore_progress, stopped)
    with terminal.screen(not quiet)[1] as bar:
        return measure(comm, ranks, terminal.progress_callback(bar), stopped)


def _show(machine: Any, links: Any, json_path: str | None) -> None:
    from hpccoll.cli.terminal import screen
    from hpccoll.tools import topo

    if json_path != "-":
        console, _ = screen(True)
        console.print(topo.tree(machine))
        if links:
            for line in topo.table(machine, links, console.width):
                console.print(line, style="dim" if line.startswith("#") else "", highlight=False,
                              soft_wrap=True)
    if json_path:
        record = {
            "schema": SCHEMA, "topology": str(machine.layout.topology),
            "levels": machine.layout.names, "used": machine.used,
            "ranks": [{"rank": rank, "node": node, **here._asdict(), "processors": mask}
                      for rank, (node, here, mask) in enumerate(zip(
                          machine.nodes, machine.positions, machine.processors))],
            "links": [{"ranks": pair, "level": machine.meet(*pair), "latency_seconds": seconds,
                       "bytes_per_second": links.bandwidth[pair]}
                      for pair, seconds in (links.latency.items() if links else ())]}
        write_text(json_path, json.dumps(record, indent=1) + "\n")
