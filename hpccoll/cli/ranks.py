"""Commands that run on many ranks: rank 0 alone speaks, and all end together."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, NoReturn

import click

from hpccoll.cli.sections import SectionCommand
from hpccoll.errors import CollectiveTimeout, CommunicatorError, HpccollError, MpiLibraryError
from hpccoll.machine.launcher import launcher_rank, require_mpi

#: Exit statuses.
BAD_OPTIONS, WRONG, INTERRUPTED = 2, 1, 130
#: Called with what is measured now, and the part of everything that is done.
Progress = Callable[[str, float], None]
#: Seconds after the first Ctrl-C from when on another one means it.
INSIST = 1.0
#: Seconds that the first rank has to say that it was interrupted before another one aborts all.
MOMENT = 0.5


class RankCommand(SectionCommand):
    """A command of many ranks: rank 0 alone complains, in one line, of what all ranks raise."""

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
            raise  # a rank may be alone with it, or rank 0 gone: each prints its own
        except HpccollError as error:
            complain(str(self.name), str(error))
            ctx.exit(BAD_OPTIONS)


def complain(command: str, message: str) -> None:
    """Say what is wrong in one line, on rank 0 alone."""
    try:
        rank = require_mpi().COMM_WORLD.Get_rank()
    except MpiLibraryError:
        rank = launcher_rank()[0]
    if rank <= 0:
        click.echo(f"hpccoll: {command}: {' '.join(message.split())}", err=True)


def report_error(error: HpccollError) -> int:
    """Say what is wrong, in this process; return the exit status."""
    click.echo(f"hpccoll: {error}", err=True)
    return BAD_OPTIONS


def without_mpi(error: MpiLibraryError) -> int:
    """Say once, for all processes of the launcher, that there is no MPI; return the exit status.

    The processes do not know of each other, so the launcher's first one speaks. The others end
    well: Open MPI's launcher kills all as soon as one fails, the one that speaks among them.
    """
    return report_error(error) if launcher_rank()[0] <= 0 else 0


def abort(comm: Any, error: Exception) -> NoReturn:
    """End all ranks because of an error on this one, which must not leave the others waiting."""
    if comm.Get_size() == 1:
        raise error
    click.echo(f"hpccoll: {error}" if isinstance(error, HpccollError) else
               "".join(traceback.format_exception(error)), err=True)
    comm.Abort(WRONG)
    os._exit(WRONG)


def agree(comm: Any, work: Callable[[], Any]) -> Any:
    """Do something on every rank; what goes wrong on any of them is raised on all.

    Raises:
        HpccollError: with what the first such rank said.
    """
    try:
        value, problem = work(), ""
    except HpccollError as error:
        value, problem = None, str(error)
    problem = next(filter(None, comm.allgather(problem)), "")
    if problem:
        raise HpccollError(problem)
    return value


def agree_on_rank_0(comm: Any, work: Callable[[], object]) -> None:
    """Do something on rank 0; what goes wrong there is raised on all.

    Raises:
        HpccollError: with what rank 0 said.
    """
    agree(comm, work if comm.Get_rank() == 0 else lambda: None)


def ignore_progress(name: str, part: float) -> None:
    """Progress on the other ranks."""


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """End in good order on Ctrl-C, so that all ranks stop together; at once on a later one."""
    caught: list[float] = []

    def note(number: int, frame: Any) -> None:
        caught.append(monotonic())
        # A terminal and a launcher both pass a Ctrl-C on, so the second may be the first.
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
    """Say that Ctrl-C ended a command that knows nothing by then; return the exit status.

    Ranks that it found elsewhere may wait for this one, and it for them where MPI ends: on several
    ranks the job is aborted.
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
