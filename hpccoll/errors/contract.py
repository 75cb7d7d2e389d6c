"""Error of ranks that make different calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpccoll.errors import HpccollError
from hpccoll.errors.waits import rank_list

__all__ = ["ContractError", "Party"]


def format_fields(fields: Mapping[str, str]) -> str:
    """Format a call as text.

    >>> format_fields({"collective": "bcast", "count": "800 bytes", "operator": "", "root": "1"})
    'bcast, count 800 bytes, root 1'
    """
    return ", ".join(f"{name} {value}" if name in ("count", "root", "layout") else value
                     for name, value in fields.items() if value)


class Party(NamedTuple):
    """Ranks that made the same call.

    Attributes:
        ranks: the ranks.
        fields: the fields of the call that all ranks must agree on, by name.
        sites: file and line of each rank that was still in the call.
    """

    ranks: tuple[int, ...]
    fields: Mapping[str, str]
    sites: tuple[str, ...]

    @property
    def call(self) -> str:
        """Return the calls and their lines as text."""
        text = format_fields(self.fields) or "unknown"
        return text + f" at {', '.join(self.sites)}" * bool(self.sites)


class ContractError(HpccollError, RuntimeError):
    """Ranks made different calls; raised on every rank that takes part.

    Attributes:
        call: the call in which they differ, as text.
        groups: ranks that agree with each other, the largest group first.
        ranks: those that differ from the majority; empty without a majority.
        field: the first field that differs, such as ``"operator"``; ``fields`` has all.
        absent: ranks with an unknown call.
    """

    def __init__(self, call: str, groups: Sequence[Party], absent: tuple[int, ...] = ()):
        self.call = call
        self.groups = tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))
        first, second = self.groups[:2]
        unknown = not all(group.fields for group in self.groups)
        clear = len(first.ranks) > len(second.ranks)
        self.ranks = tuple(sorted(rank for group in self.groups[1:] for rank in group.ranks)
                           ) if clear else ()
        self.fields = tuple(name for name in first.fields if any(
            group.fields.get(name) != first.fields[name] for group in self.groups))
        self.field = self.fields[0] if self.fields and not unknown else "call"
        self.absent = absent
        ordered = (*self.groups[1:], first) if clear else self.groups
        lines = [f"ranks disagree on {self.field} in {call}:"]
        lines += [f"{rank_list(group.ranks)}: {group.fields.get(self.field) or 'another'} "
                  f"({group.call})" for group in ordered]
        lines += [f"no report from {rank_list(absent)}"] if absent else []
        super().__init__("\n  ".join([*lines, "make the same call on all ranks"]))

    def add(self, hint: str) -> None:
        """Add a hint about the cause to the message, if it is not empty."""
        if hint:
            self.args = f"{self.args[0]}\n  {hint}",
