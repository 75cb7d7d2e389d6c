"""``hpccoll bench torch``: calls of torch.distributed and steps of DDP, beside Gloo's.

Exit status: 0, 2 for bad options, 130 when interrupted.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hpccoll.cli.options import OneOf, check_outputs, opened
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    Ranked,
    abort,
    agree_on_rank_0,
    complain,
    stoppable,
)
from hpccoll.errors import HpccollError
from hpccoll.machine.launcher import require_mpi
from hpccoll.units import short_size_text, time_text

SCHEMA = "hpccoll-torch-1"


@click.command("bench torch", cls=Ranked, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=OneOf(["calls", "steps"]), help="Leave the others out.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write a record of all times, in seconds; - is standard output.")
def command(only: str | None, json_path: str | None) -> None:
    """Set the process group "hpccoll" beside Gloo's, in the same processes and in turns.

    Calls of torch.distributed from 8 B to 32 MiB, and steps of DistributedDataParallel with 2, 25
    and 100 MB of parameters, of which the time beyond one without communication counts.

    \b
    mpiexec -n 2 hpccoll bench torch
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.tools.bench import provenance, torch_calls

        comm, found, interrupted = MPI.COMM_WORLD, [], False
        try:
            agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
            with closing(torch_calls.measure(only)) as measuring:
                for each in measuring:
                    found.append(each)
                    # A rank that stops alone would leave the others waiting.
                    interrupted = comm.allreduce(stopped(), MPI.LOR)
                    if interrupted:
                        break
            environment = provenance.record(comm, None)
            if environment is not None:
                if json_path is not None:
                    with opened(json_path) as file:
                        json.dump(_record(environment, found), file, indent=1)
                if json_path != "-":
                    console, _ = terminal.screen(True)
                    console.print(_table(found))
        except HpccollError as error:
            complain("bench torch", str(error))
            sys.exit(BAD_OPTIONS)
        except Exception as error:
            abort(comm, error)
    if interrupted:
        complain("bench torch", "interrupted: not everything was measured")
    sys.exit(INTERRUPTED if interrupted else 0)


def _table(found: list[Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, caption="alone: the step without communication, which the ratio "
                                           "leaves out")
    table.add_column("call", no_wrap=True)
    for title in ("bytes", "hpccoll", "gloo", "alone", "ratio"):
        table.add_column(title, justify="right")
    for each in found:
        silent = each.seconds.get("no communication")
        table.add_row(each.what, short_size_text(each.nbytes),
                      time_text(each.seconds["hpccoll"], 3), time_text(each.seconds["gloo"], 3),
                      "" if silent is None else time_text(silent, 3), f"{each.ratio:.2f}")
    return table


def _record(environment: dict[str, Any], found: list[Any]) -> dict[str, Any]:
    from importlib.metadata import version

    return {"schema": SCHEMA, "environment": {**environment, "torch": version("torch")},
            "results": [{"what": each.what, "nbytes": each.nbytes, "seconds": each.seconds,
                         "ratio": each.ratio} for each in found]}
