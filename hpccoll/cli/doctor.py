"""``hpccoll doctor``: checks of a job's set-up, with remedies.

Runs under every launcher and without one. Exit status: 0, 1 for an error (with ``--strict`` also
for a warning), 2 for bad options; the same on every rank.
"""

from __future__ import annotations

import json
import sys
from textwrap import wrap
from typing import Any

import click
from rich.text import Text

from hpccoll.cli.ranks import WRONG, RankCommand
from hpccoll.errors import ArgumentError, MpiLibraryError
from hpccoll.machine.launcher import launcher_rank, require_mpi

SCHEMA = "hpccoll-doctor-1"
STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
#: Characters between columns.
GAP = 2


@click.command("doctor", cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--ranks", type=click.IntRange(min=1), metavar="N",
              help="Expected number of ranks; any other number is an error.")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--clean", is_flag=True, help="Remove shared memory files of your dead jobs on the "
                                            "job's nodes, then check.")
@click.option("--log", metavar="FILE",
              help="Explain the output of a job that failed before doctor could start.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: findings and facts.")
def command(ranks: int | None, strict: bool, clean: bool, log: str | None,
            as_json: bool) -> None:
    """Examine this job: MPI library, launcher, layout, binding, memory, devices, settings.

    \b
    mpiexec -n 4 python -m hpccoll doctor
    srun --mpi=pmi2 python -m hpccoll doctor --ranks "$SLURM_NTASKS"
    python -m hpccoll doctor --log slurm-123.out
    """
    if log is not None:
        sys.exit(_explain(log, as_json))
    try:
        require_mpi(steps=True)
    except MpiLibraryError:
        # A running MPI with one rank is a finding like others.
        loaded = sys.modules.get("mpi4py.MPI")
        if loaded is None or not loaded.Is_initialized():
            raise
    from mpi4py import MPI

    from hpccoll.tools.doctor import RankFacts, examine, gather
    from hpccoll.tools.doctor.facts import local_facts
    from hpccoll.tools.doctor.findings import ERROR, WARNING, world
    from hpccoll.tools.doctor.shm_cleanup import leftovers, remove

    if clean:  # concurrent removal by several ranks of a node is safe
        for each in remove(leftovers()):
            click.echo(f"removed {each.path}, {each.nbytes} bytes of {each.owner}", err=True)
    mine, wrong = local_facts(), (ERROR, WARNING) if strict else (ERROR,)
    comm = MPI.COMM_WORLD
    facts: list[RankFacts] | None = [mine] * mine.size
    findings = list(world([mine] * mine.size, ranks or 0))
    if not any(each.level == ERROR for each in findings):
        facts = gather(mine)
        findings = examine(facts, ranks or 0) if facts is not None else []
    # Jobs of one rank would all print the same: only the launcher's first process prints. The
    # others succeed, because a launcher kills all processes after the first failure.
    first = mine.launched[0] <= 0
    if mine.rank == 0 and first:
        (_json if as_json else _text)(findings, facts or [mine])
    failed = comm.bcast(any(each.level in wrong for each in findings) and (
        first or mine.size > 1))
    sys.exit(WRONG if failed else 0)


def _explain(log: str, as_json: bool) -> int:
    """Explain the output of a failed job; needs no MPI, which may have failed."""
    from hpccoll.tools.failures import explain_lines

    try:
        with open(log, encoding="utf-8", errors="replace") as lines:
            findings = list(explain_lines(lines))
    except OSError as error:
        raise ArgumentError("--log", f"cannot read {log!r}: {error.strerror}") from error
    if launcher_rank()[0] <= 0:
        if findings or as_json:
            (_json if as_json else _text)(findings, [])
        else:
            click.echo("no known failure found")
    return WRONG if findings else 0


def _text(findings: list[Any], facts: list[Any]) -> None:
    """Print the findings as a table, and a summary."""
    from hpccoll.cli.terminal import screen
    from hpccoll.units import ranks_text

    console, _ = screen(True)
    level, topic = (GAP + max(map(len, names)) for names in (
        [each.level for each in findings], [each.topic for each in findings]))
    before = level + topic

    def say(text: str, indent: str, style: str) -> list[Text]:
        return [Text(f"{indent if not number else '':{before}}") + Text(line, style=style)
                for number, line in enumerate(wrap(text, console.width - before,
                                                   break_long_words=False))]

    for each in findings:
        some = each.ranks and len(each.ranks) < len(facts)
        lines = say(each.what + (f" ({ranks_text(each.ranks)})" if some else ""),
                    f"{each.level:{level}}{each.topic}", "")
        lines[0].stylize(STYLES[each.level], 0, len(each.level))
        lines += say("-> " + each.remedy, "", "bold") if each.remedy else []
        for line in lines:
            console.print(line, soft_wrap=True)
    counts = {level: sum(each.level == level for each in findings) for level in STYLES}
    said = [f"{number} {level}{'s' * (number != 1)}" for level, number in counts.items()
            if number and level != "ok"]
    console.print(", ".join(said) or "no problems found")


def _json(findings: list[Any], facts: list[Any]) -> None:
    click.echo(json.dumps({
        "schema": SCHEMA, "ranks": len(facts),
        "findings": [each._asdict() for each in findings],
        "facts": [vars(each) for each in facts]}, indent=1, default=dict))
