"""``hpccoll status``: what the ranks of a running job on this node do.

Exit status: 0, or 2 if there is no such job.
"""

from __future__ import annotations

import json

import click


@click.command("status", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False, default="", metavar="[JOB|PID]")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
def command(job: str, json_path: str | None) -> None:
    """Show in which call each rank of this node is, since when, and whom it waits for.

    JOB is a job of Slurm, PID a rank or its mpiexec; all your jobs by default. It reads shared
    memory and stops nothing.

    \b
    hpccoll status
    srun --jobid 4711 --overlap --ntasks-per-node 1 hpccoll status 4711
    """
    import mpi4py

    from hpccoll.cli.options import check_outputs, write_text
    mpi4py.rc.initialize = False  # this program is no rank
    from hpccoll.tools import status
    from hpccoll.units import count_text
    check_outputs(json_path, None)
    found = status.read_jobs(job)
    if json_path is not None:
        write_text(json_path, json.dumps([one.as_json() for one in found], indent=1) + "\n")
        return
    if not found:
        click.echo("no job with ranks of hpccoll on this node")
    for one in found:
        head = [f"job {one.key}: {count_text(len(one.ranks), 'rank')} on this node"]
        click.echo("\n".join((*(head if one.ranks else []), *(f"  {line}" for line in one.ranks),
                              *one.verdict)))
