"""Commands of one process: an error is one line and status 2, Ctrl-C one line and status 130."""

from __future__ import annotations

from typing import Any

import click

from hpccoll.cli.ranks import SectionCommand, report_error, report_interrupt
from hpccoll.errors import HpccollError


class OneProcess(SectionCommand):
    """A command that starts no MPI."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            message = error.format_message().removesuffix(".")
            raise click.exceptions.Exit(report_error(HpccollError(
                f"{self.name}: {message}; run it with --help"))) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HpccollError as error:
            ctx.exit(report_error(error))
        except KeyboardInterrupt:
            ctx.exit(report_interrupt(str(self.name)))
