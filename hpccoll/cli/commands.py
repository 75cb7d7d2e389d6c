"""The command ``hpccoll``: the table of its sub-commands."""

from __future__ import annotations

from importlib import import_module

import click

from hpccoll import __version__
from hpccoll.cli.ranks import report_error, report_interrupt, without_mpi
from hpccoll.errors import ArgumentError, HpccollError, MpiLibraryError, did_you_mean

#: Sub-command -> its module, with the name of the function unless that is ``command``, and its line
#: in ``hpccoll --help``. A command of two words precedes that of its first word.
COMMANDS = {
    "bench": ("hpccoll.cli.bench", "Measure collectives and compare them with the host MPI."),
    "bench compare": ("hpccoll.cli.bench_more:compare_command",
                      "Compare two records of bench --json."),
    "bench fresh": ("hpccoll.cli.bench_more:fresh_command",
                    "Measure new sizes and new communicators."),
    "bench overlap": ("hpccoll.cli.bench_more:overlap_command",
                      "Measure the overlap of work and collectives."),
    "doctor": ("hpccoll.cli.doctor", "Check a job: problems and remedies."),
    "explain": ("hpccoll.cli.explain", "Print an algorithm as text, JSON or a picture."),
    "job": ("hpccoll.cli.job", "Write a commented job script for Slurm, PBS or Flux."),
    "run": ("hpccoll.cli.run", "Run an unchanged mpi4py script with hpccoll's collectives."),
    "simulate": ("hpccoll.cli.simulate", "Simulate the time of algorithms on a machine."),
    "status": ("hpccoll.cli.status", "Show what the ranks of a running job on this node do."),
    "topo": ("hpccoll.cli.topo", "Show the machine: levels, ranks, link times."),
    "trace": ("hpccoll.cli.trace", "Show what all ranks did, and diagnose a hang."),
    "tune": ("hpccoll.cli.tune", "Measure the fastest algorithms and store them for auto."),
    "verify": ("hpccoll.cli.verify", "Prove algorithms correct for each number of ranks."),
}


class Commands(click.Group):
    """Group that finds its sub-commands in ``COMMANDS``."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, context: click.Context, args: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        pair = " ".join(args[:2])
        seconds = [name.split()[1] for name in COMMANDS if name.startswith(f"{args[0]} ")]
        if pair in COMMANDS:
            args = [pair, *args[2:]]
        elif args[1:] and (near := did_you_mean(args[1], seconds)):
            raise ArgumentError("command", f"{pair!r} is unknown", near)
        elif (args and args[0] not in COMMANDS and not args[0].startswith("-")
              and not context.resilient_parsing):  # completion of a shell also parses
            raise ArgumentError.unknown_word("command", args[0], COMMANDS)
        return super().resolve_command(context, args)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            module, _, function = COMMANDS[name][0].partition(":")
            return getattr(import_module(module), function or "command")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("hpccoll"):
                raise
            raise HpccollError(f"{name} requires {error.name}, which is not installed; run pip "
                               "install 'hpccoll[cli]'") from error

    def format_commands(self, context: click.Context,
                        formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, context: click.Context):
        try:
            return super().invoke(context)
        except click.UsageError as error:
            if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
                raise
            context.exit(report_usage_error(error, error.ctx))
        except HpccollError as error:
            context.exit(without_mpi(error) if isinstance(error, MpiLibraryError)
                         else report_error(error))
        except KeyboardInterrupt:
            context.exit(report_interrupt(str(context.invoked_subcommand)))


def report_usage_error(error: click.UsageError, context: click.Context) -> int:
    """Print one line about a wrong option or argument; return the exit status."""
    names, at = [str(context.info_name)], context.parent
    while at is not None and at.parent is not None:
        names, at = [str(at.info_name), *names], at.parent
    words = " ".join(names)
    message = " ".join(error.format_message().split()).removesuffix(".")
    return report_error(HpccollError(f"{words}: {message}; run hpccoll {words} --help"))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpccoll")
def main() -> None:
    """Collective operations for supercomputer jobs, proved before they run."""
