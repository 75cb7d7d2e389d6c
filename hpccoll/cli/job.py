"""``hpccoll job``: a script for the batch system of a site, every line with its reason."""

from __future__ import annotations

import os
import re
import shlex
from textwrap import wrap

import click

from hpccoll.cli.options import report_write_errors
from hpccoll.errors import ArgumentError
from hpccoll.tools.jobs import SITES, Job, script
from hpccoll.tools.jobs.job import BENCH, TRAIN
from hpccoll.tools.jobs.site import LAUNCH, LAUNCHERS


@click.command("job", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--site", default="generic", show_default=True, metavar="NAME",
              help="Kind of cluster; --list shows them.")
@click.option("--list", "listed", is_flag=True, help="Show the known sites instead.")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True,
              help="Number of nodes.")
@click.option("--ppn", type=click.IntRange(min=1), default=None, help="Ranks of each node.")
@click.option("--threads", type=click.IntRange(min=1), default=None,
              help="Threads per rank, one per core. Default: the node's cores divided by its "
                   "ranks.")
@click.option("--gpus", type=click.IntRange(min=0), default=None, help="Devices of each node.")
@click.option("--mpi", default="", metavar="NAME", help=f"MPI library: {', '.join(LAUNCH)}.")
@click.option("--launcher", default="", metavar="NAME",
              help="Launcher of the ranks: " + ", ".join(
                  f"{' or '.join(each)} with {name}" for name, each in LAUNCHERS.items()) + ".")
@click.option("--time", default="00:10:00", show_default=True,
              help="Limit as Slurm reads it: hours:minutes:seconds, minutes, days-hours, ...")
@click.option("--name", default="hpccoll", show_default=True, help="Name of the job.")
@click.option("--account", default="", help="Account of the job.")
@click.option("--partition", default="", help="Partition, or queue with PBS.")
@click.option("--qos", default="", help="Quality of service, with Slurm.")
@click.option("--activate", default="", metavar="FILE",
              help="File to source for the Python environment, such as .venv/bin/activate.")
@click.option("--clean", is_flag=True,
              help="Do not inherit the shell's environment (sbatch --export=NONE): the script "
                   "loads modules and the Python environment.")
@click.option("--interactive", is_flag=True,
              help="For a shell in a job (salloc, qsub -I, flux alloc), not for a script.")
@click.option("--train", is_flag=True,
              help="The program trains a model: one rank per device, with its settings.")
@click.option("-o", "--output", default="-", metavar="FILE",
              help="Output file; - is standard output.")
def command(command_line, listed, output, ppn, threads, gpus, **given):
    """Write a job script that runs COMMAND on every rank; one COMMAND word is read by the shell.

    \b
    hpccoll job --nodes 4 --ppn 32 -- python -m hpccoll run my_program.py
    hpccoll job --site frontier --account ABC123 -o job.sbatch -- python train.py
    hpccoll job --site gpu --gpus 8 --ppn 8 -- 'python train.py --log "$job.log"'
    hpccoll job --interactive --site frontier --account ABC123 -o session.sh
    hpccoll job --train --site perlmutter -- python -m hpccoll run train.py
    """
    if listed:
        from hpccoll.cli.terminal import columns

        indent = 2 + max(map(len, SITES))
        for name, site in SITES.items():
            seen = f", as of {site.checked}" if site.checked else ""
            for line in (f"{site.title} [{site.scheduler}, {site.ppn} ranks per node]",
                         f"facts from {site.source}{seen}"):
                for part in wrap(line, columns() - indent, break_long_words=False):
                    click.echo(f"{name:<{indent}}{part}")
                    name = ""
        return
    for name in ("name", "account", "partition", "qos"):
        if not re.fullmatch(r"[\w.@%+:-]*", given[name]):
            raise ArgumentError(f"--{name}", f"cannot use {given[name]!r}",
                                "use letters, digits and . _ - only")
    text = script(Job(ppn=ppn or 0, threads=threads or 0, gpus=-1 if gpus is None else gpus,
                      command=_shell(command_line, TRAIN if given["train"] else BENCH), **given))
    with report_write_errors("--output", output):
        if output == "-":
            click.echo(text, nl=False)
        else:
            _write(output, text)
            click.echo(f"wrote {output}", err=True)


def _write(output: str, text: str) -> None:
    """Write a script; keep a backup of an existing script with other text."""
    if os.path.isfile(output):
        with open(output, encoding="utf-8", errors="replace") as file:
            if file.read() != text:
                os.replace(output, f"{output}~")
                click.echo(f"renamed the old {output} to {output}~", err=True)
    with open(output, "w", encoding="utf-8") as file:
        file.write(text)


def _shell(words: tuple[str, ...], usual: str) -> str:
    """Return the shell command: text unchanged, words quoted."""
    return usual if not words else words[0] if len(words) == 1 else shlex.join(words)
