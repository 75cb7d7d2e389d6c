"""``hpccoll run``: an unchanged mpi4py program on hpccoll's collectives.

:mod:`hpccoll.cli.program` runs it; ``python -m hpccoll`` calls that directly for a script without
options.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

import click

from hpccoll import config
from hpccoll.cli.program import run_program
from hpccoll.cli.ranks import BAD_OPTIONS, WRONG
from hpccoll.errors import ArgumentError
from hpccoll.machine.launcher import launcher_rank

#: Programs that run instead of a script.
KINDS = {"-m": "a module", "-c": "code"}


def _algorithms(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str:
    """Check the choices, and append them to those of the environment, over which they win."""
    for text in texts:
        try:
            config.parse_algorithms(text)
        except ArgumentError as error:
            raise click.BadParameter(str(error)) from error
    return ";".join(filter(None, (os.environ.get("HPCCOLL_ALGORITHM"), *texts)))


def _topology(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Check the form of a layout; whether it fits shows when the number of ranks is known."""
    if text is None:
        return None
    from hpccoll.ir.topology import Topology
    try:
        return text and str(Topology.parse(text))
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from error


def _program(context: click.Context, parameter: click.Parameter,
             words: tuple[str, ...]) -> tuple[str, ...]:
    """Check the program argument."""
    if words and words[0] in KINDS and len(words) == 1:
        raise click.UsageError(f"{words[0]} needs {KINDS[words[0]]} to run")
    if words and words[0] not in KINDS and words[0].startswith("-"):
        raise click.NoSuchOption(words[0])
    return words


class LaunchedCommand(click.Command):
    """A command that knows only what its launcher says of other ranks: each error is one line.

    What is wrong with the command line is so on all ranks, and the first one says it; the others
    end well, because Open MPI's launcher kills all as soon as one fails.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise self._exit_for(error, launcher_rank()[0] <= 0) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # which may be that of one node only
            raise self._exit_for(error, True) from error

    def _exit_for(self, error: click.UsageError, here: bool) -> click.exceptions.Exit:
        if here:
            said = " ".join(error.format_message().split())
            click.echo(f"hpccoll: {self.name}: {said}", err=True)
        return click.exceptions.Exit(BAD_OPTIONS if here else 0)


@click.command("run", cls=LaunchedCommand, context_settings={"ignore_unknown_options": True,
                                        "allow_interspersed_args": False},
               options_metavar="[OPTIONS]", short_help="Run an unchanged mpi4py program.")
@click.option("--algorithm", "algorithms", multiple=True, callback=_algorithms,
              metavar="COLLECTIVE=NAME", help="Use this algorithm for all calls that it supports; "
                                              "repeatable. Parameters follow the name: "
                                              "bcast=knomial:k=4.")
@click.option("--topology", callback=_topology, metavar="TEXT",
              help="Layout to assume for COMM_WORLD, such as 2x4 or 3,5,4.")
@click.option("--profile", "profiled", is_flag=True,
              help="Print the number and time of calls of each collective at the end.")
@click.option("--compare", is_flag=True,
              help="Profile, and measure a sample of the calls also with the MPI library.")
@click.option("--json", "json_path", metavar="FILE", help="Profile, and write it as JSON.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Profile, and draw it; the suffix selects the format: png, svg, pdf.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, callback=_program,
                metavar="SCRIPT|-m MODULE|-c CODE [ARGUMENTS]...")
def command(algorithms: str, topology: str | None, profiled: bool, compare: bool,
            json_path: str | None, plot_path: str | None, program: tuple[str, ...]) -> None:
    """Run an unchanged mpi4py program: its MPI.COMM_WORLD is an hpccoll.Comm.

    \b
    mpiexec -n 64 hpccoll run script.py --its-own-option
    mpiexec -n 64 hpccoll run --algorithm allreduce=ring -m package.module
    mpiexec -n 64 hpccoll run --profile script.py
    """
    kind = program[0] if program[0] in KINDS else ""
    if not kind and not os.path.exists(program[0]):
        raise click.UsageError(f"there is no file {program[0]!r}")
    if kind == "-m" and len(program) > 1 and not (
            (package := program[1].partition(".")[0]) and _is_module(package)):
        raise click.UsageError(f"there is no module {program[1]!r}")
    if algorithms:
        os.environ["HPCCOLL_ALGORITHM"] = algorithms
    if json_path is not None or plot_path is not None:
        from hpccoll.cli.options import check_outputs
        check_outputs(json_path, plot_path)
    profiled |= compare or bool(json_path or plot_path)
    ended = threading.Event()
    if profiled:
        os.environ["HPCCOLL_PROFILE"] = "yes"
        # Runs after the exit handlers of the program: other ranks may wait for these.
        atexit.register(_tell_profile, ended, compare, json_path, plot_path)
    config.load()  # a malformed variable is reported here, before MPI is started
    run_program(kind, program[1 if kind else 0:], topology, ended.set)


def _is_module(package: str) -> bool:
    """Return True if there is such a module; imports nothing."""
    return (package in sys.modules or PathFinder.find_spec(package, [os.getcwd()]) is not None
            or find_spec(package) is not None)


def _tell_profile(ended: threading.Event, compare: bool, json_path: str | None,
                  plot_path: str | None) -> None:
    """Print the profile of a program that ended well; collective."""
    if not ended.is_set():
        return
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        click.echo("hpccoll: no profile: MPI is not active at the end of the program", err=True)
        return
    from hpccoll.atomic_file import open_replacement
    from hpccoll.cli.options import report_write_errors
    from hpccoll.cli.terminal import columns
    from hpccoll.tools.profile import draw, finish

    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()  # the output of the program precedes the profile
    found = finish(compare)
    if found is None:
        return
    # The table first: a file that cannot be written must not cost the profile of a long job.
    click.echo("\n".join(found.lines(columns(2))), err=True)
    failed = False
    for option, path in (("--json", json_path), ("--plot", plot_path)):
        if not path:
            continue
        try:
            with report_write_errors(option, path):
                if option == "--json":
                    with open_replacement(path) as file:
                        file.write(json.dumps(found.as_json(), indent=1) + "\n")
                else:
                    draw(found, path)
            click.echo(f"wrote {path}", err=True)
        except ArgumentError as error:
            failed = True
            click.echo(f"hpccoll: {option}: {str(error).partition(': ')[2]}", err=True)
    if failed:
        MPI.Finalize()  # without an abort, which would hide the message
        sys.stdout.flush()
        os._exit(WRONG)
