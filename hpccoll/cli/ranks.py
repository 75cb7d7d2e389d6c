"""Commands of many ranks: rank 0 prints, and all ranks exit together."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, NoReturn

import click

from hpccoll.errors import CollectiveTimeout, CommunicatorError, HpccollError, MpiLibraryError
from hpccoll.machine.launcher import launcher_rank, require_mpi


class SectionCommand(click.Command):
    """A command whose ``--help`` groups its options.

    Args:
        sections: title of each group, and the names of its options; the others come last.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None,
                 **options: Any):
        super().__init__(*args, **options)
        self.sections = sections or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {str(each.name): record for each in self.get_params(ctx)
                   if (record := each.get_help_record(ctx)) is not None}
        for title, names in self.sections.items():
            rows = [records.pop(name) for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if records:
            with formatter.section("Other options" if self.sections else "Options"):
                formatter.write_dl(list(records.values()))


#: Exit statuses.
BAD_OPTIONS, WRONG, INTERRUPTED = 2, 1, 130
#: Callback of progress, with the name of the current step and the completed fraction.
Progress = Callable[[str, float], None]
#: Minimum seconds between the first Ctrl-C and one that ends the process immediately.
INSIST = 1.0
#: Seconds for the first rank to report an interrupt, before another rank aborts the job.
MOMENT = 0.5


class RankCommand(SectionCommand):
    """Command of many ranks: rank 0 prints, in one line, errors that all ranks raise."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            message = error.format_message().removesuffix(".")
            complain(str(self.name), f"{message}; run hpccoll {self.name} --help")
            raise click.exceptions.Exit(BAD_OPTIONS) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (CollectiveTimeout, CommunicatorError, MpiLibraryError):
            raise  # on one rank only, or without rank 0: each rank prints its own error
        except HpccollError as error:
            complain(str(self.name), str(error))
            ctx.exit(BAD_OPTIONS)


def complain(command: str, message: str) -> None:
    """Print an error in one line, on rank 0 only."""
    try:
        rank = require_mpi().COMM_WORLD.Get_rank()
    except MpiLibraryError:
        rank = launcher_rank()[0]
    if rank <= 0:
        click.echo(f"hpccoll: {command}: {' '.join(message.split())}", err=True)


def report_error(error: HpccollError) -> int:
    """Print an error of this process; return the exit status."""
    click.echo(f"hpccoll: {error}", err=True)
    return BAD_OPTIONS


def without_mpi(error: MpiLibraryError) -> int:
    """Report once per job that MPI cannot be loaded; return the exit status.

    The launcher's first process prints. The others exit with status 0, because Open MPI's launcher
    kills all processes after the first failure.
    """
    return report_error(error) if launcher_rank()[0] <= 0 else 0


def abort(comm: Any, error: Exception) -> NoReturn:
    """Abort all ranks after an error on this one, so that the others do not wait."""
    if comm.Get_size() == 1:
        raise error
    click.echo(f"hpccoll: {error}" if isinstance(error, HpccollError) else
               "".join(traceback.format_exception(error)), err=True)
    comm.Abort(WRONG)
    os._exit(WRONG)


def agree(comm: Any, work: Callable[[], Any]) -> Any:
    """Call ``work`` on every rank; raise an error of any rank on all."""
    try:
        value, problem = work(), ""
    except HpccollError as error:
        value, problem = None, str(error)
    problem = next(filter(None, comm.allgather(problem)), "")
    if problem:
        raise HpccollError(problem)
    return value


def agree_on_rank_0(comm: Any, work: Callable[[], object]) -> None:
    """Call ``work`` on rank 0; raise its error on all ranks."""
    agree(comm, work if comm.Get_rank() == 0 else lambda: None)


def ignore_progress(name: str, part: float) -> None:
    """Ignore progress, on ranks other than 0."""


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Return a context in which Ctrl-C only sets a flag, so that all ranks stop together.

    A later Ctrl-C ends the process immediately.
    """
    caught: list[float] = []

    def note(number: int, frame: Any) -> None:
        caught.append(monotonic())
        # A terminal and a launcher may both forward one Ctrl-C.
        if caught[-1] - caught[0] > INSIST:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def report_interrupt(command: str) -> int:
    """Report that Ctrl-C ended a command without results; return the exit status.

    On several ranks the job is aborted, because other ranks may wait for this one.
    """
    if launcher_rank()[0] <= 0:
        click.echo(f"hpccoll: {command}: interrupted", err=True)
    else:
        sleep(MOMENT)
    MPI = sys.modules.get("mpi4py.MPI")
    if (MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()
            and MPI.COMM_WORLD.Get_size() > 1):
        MPI.COMM_WORLD.Abort(INTERRUPTED)
    return INTERRUPTED
