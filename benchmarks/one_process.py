"""Commands of one process: an error is one line and status 2, Ctrl-C one line and status 130."""

from __future__ import annotations

from typing import Any

import click

from hpccoll.cli.ranks import interrupted, said
from hpccoll.cli.sections import Sectioned
from hpccoll.errors import HpccollError


class OneProcess(Sectioned):
    """A command that starts no MPI."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            message = error.format_message().removesuffix(".")
            raise click.exceptions.Exit(said(HpccollError(
                f"{self.name}: {message}; run it with --help"))) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HpccollError as error:
            ctx.exit(said(error))
        except KeyboardInterrupt:
            ctx.exit(interrupted(str(self.name)))
