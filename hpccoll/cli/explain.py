"""``hpccoll explain``: an algorithm in words, as JSON, or as a picture; the list of all."""

from __future__ import annotations

import json

import click

from hpccoll.algorithms import schedule
from hpccoll.cli.options import parameters, write_text
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_json, as_list, as_markdown, as_text, draw


@click.command("explain")
@click.argument("collective", required=False)
@click.argument("algorithm", required=False)
@click.option("--list", "listed", is_flag=True,
              help="List the algorithms, of COLLECTIVE or of all, with what each does.")
@click.option("--markdown", is_flag=True, help="With --list: as the page docs/algorithms.md.")
@click.option("--size", type=int, help="Number of ranks. Default: 8, or what --topology says.")
@click.option("--topology", help="Layout for hierarchical algorithms, such as 2x4 or 3,5,4.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of a rooted collective.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the algorithm, such as k=4; repeatable.")
@click.option("--nbytes", type=click.IntRange(min=0),
              help="Bytes of a rank's vector, or of all its blocks together: costs in bytes.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
@click.option("--tape", "tape_rank", type=int, metavar="RANK",
              help="The instructions of a rank instead, as the compiled executor runs them.")
@click.option("--draw", "picture_path", metavar="FILE",
              help="Draw instead of text; the suffix names the format: png, svg, pdf.")
def command(collective, algorithm, listed, markdown, size, topology, root, params, nbytes,
            json_path, tape_rank, picture_path):
    """Show what ALGORITHM does for COLLECTIVE: who sends what to whom in which round.

    \b
    hpccoll explain --list allreduce
    hpccoll explain allreduce ring --size 4
    hpccoll explain bcast knomial --size 9 --root 2 --param k=3
    hpccoll explain allgather bruck --size 16 --draw bruck.png
    hpccoll explain allreduce recursive_doubling --size 2 --nbytes 8 --tape 0
    """
    if listed and algorithm is None and not (markdown and collective):
        click.echo(as_markdown() if markdown else as_list(collective), nl=False)
        return
    if listed or markdown:
        raise ArgumentError("--list", "lists all algorithms, or those of one collective",
                            "write --list, --list COLLECTIVE or --list --markdown")
    if algorithm is None:
        raise click.UsageError("name a COLLECTIVE and an ALGORITHM; --list shows them")
    if size is None and topology is None:
        size = 8
    built = schedule(collective, algorithm, size, root=root, topology=topology,
                    **parameters(params))
    if tape_rank is not None:
        # Only who asks for a tape loads what tapes are made of.
        from hpccoll.tools.tapes import text_of
        click.echo(text_of(built, tape_rank, nbytes))
        return
    if json_path is not None:
        write_text(json_path, json.dumps(as_json(built), indent=1) + "\n")
    if picture_path is not None:
        draw(built, picture_path, nbytes)
        click.echo(f"wrote {picture_path}", err=True)
    if json_path is None and picture_path is None:
        click.echo(as_text(built, nbytes), nl=False)
