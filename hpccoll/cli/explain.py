"""``hpccoll explain``: an algorithm as text, JSON or picture; the list of algorithms."""

from __future__ import annotations

import json

import click
from click.core import ParameterSource

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import is_reference
from hpccoll.cli.options import ALGORITHM, RankCount, resolve_algorithm, write_text
from hpccoll.errors import ArgumentError
from hpccoll.explain import (
    as_json,
    as_list,
    as_msccl,
    as_text,
    collectives,
    draw,
    plotting,
)
from hpccoll.explain.columns import WIDTH
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.units import byte_count


@click.command("explain")
@click.argument("collective", required=False)
@click.argument("algorithm", required=False, type=ALGORITHM)
@click.option("--list", "listed", is_flag=True,
              help="List the algorithms of COLLECTIVE, or all, with a description.")
@click.option("--size", type=RankCount(1), help="Ranks. Default: 8, or the size of --topology.")
@click.option("--topology", help="Layout for hierarchical algorithms, such as 2x4 or 3,5,4.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of a rooted collective.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the algorithm, such as k=4; repeatable.")
@click.option("--nbytes", "wanted_bytes", metavar="BYTES",
              help="Bytes of a rank's vector, or of all its blocks together, such as 1M: costs in "
                   "bytes.")
@click.option("--brief", is_flag=True, help="Costs, proved properties, and the pattern of each "
                                            "round.")
@click.option("--rank", type=int, metavar="RANK", help="Show this rank only.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
@click.option("--msccl", "msccl_path", metavar="FILE",
              help="Write MSCCL's XML instead of text; - is standard output.")
@click.option("--beside", "others", multiple=True, type=ALGORITHM, metavar="NAME",
              help="With --draw, another algorithm to the right, such as ring; repeatable.")
@click.option("--draw", "picture_path", metavar="FILE",
              help="Draw instead of text; the suffix selects the format: png, svg, pdf.")
@click.pass_context
def command(context, collective, algorithm, listed, size, topology, root, params,
            wanted_bytes, brief, rank, json_path, msccl_path, others, picture_path):
    """Show what ALGORITHM does for COLLECTIVE: who sends what to whom in which round.

    Algorithms of your own are FILE.py:NAME or PACKAGE.MODULE:NAME; one that says its collective
    needs no COLLECTIVE.

    \b
    hpccoll explain
    hpccoll explain allreduce
    hpccoll explain allreduce ring --size 4
    hpccoll explain bcast knomial --size 9 --root 2 --param k=3
    hpccoll explain allgather bruck --size 16 --draw bruck.png
    hpccoll explain my.py:torus --size 8 -p x=2 -p y=2 -p z=2
    """
    if listed:
        if algorithm is not None:
            raise ArgumentError("--list", "accepts at most one collective",
                                "write --list or --list COLLECTIVE")
        click.echo(as_list(collective, _width()), nl=False)
        return
    collective, algorithm = resolve_algorithm(collective, algorithm, params)
    if algorithm is None:
        click.echo(as_list(collective, _width()) if collective else collectives(_width()))
        click.echo(f"hpccoll explain {collective or 'COLLECTIVE'} "
                   + ("ALGORITHM explains an algorithm" if collective else "lists its algorithms"))
        return
    nbytes = None if wanted_bytes is None else byte_count("--nbytes", wanted_bytes)
    if (context.get_parameter_source("root") == ParameterSource.COMMANDLINE
            and collective in COLLECTIVES and not COLLECTIVES[collective].rooted):
        raise ArgumentError("--root", f"{collective} has no root", "leave it out")
    if size is None and topology is None:
        size = (is_reference(algorithm.name) and algorithm.entry(collective).size) or 8
    built = schedule(collective, algorithm.name, size, root=root, topology=topology,
                     **algorithm.params)
    if picture_path is not None:
        plotting.check(picture_path, "--draw")
    elif others:
        raise ArgumentError("--beside", "requires --draw")
    if json_path is not None:
        write_text(json_path, json.dumps(as_json(built), indent=1) + "\n")
    if msccl_path is not None:
        write_text(msccl_path, as_msccl(built))
    if picture_path is not None:
        draw(built, picture_path, nbytes, [
            schedule(collective, other.name, built.size, root=root, topology=topology,
                     **other.params) for other in others])
        click.echo(f"wrote {picture_path}", err=True)
    if json_path is None and picture_path is None and msccl_path is None:
        click.echo(as_text(built, nbytes, brief, rank, _width()), nl=False)


def _width() -> int:
    """Return the characters of a line of the terminal; without rich a default."""
    try:
        from hpccoll.cli.terminal import columns
    except ModuleNotFoundError:
        return WIDTH
    return columns()
