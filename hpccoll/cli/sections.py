"""Help pages whose options stand in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


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
        """Write the groups."""
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
