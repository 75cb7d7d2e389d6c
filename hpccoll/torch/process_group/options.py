"""Arguments of a process group's methods: torch's options, or what is given in place of them.

``torch.distributed`` passes options. Hooks and programs that call the group itself may leave them
out, or give the operator or root alone, and one tensor in place of a list of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch.distributed import distributed_c10d as c10d

OneOrMore: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
Options = TypeVar("Options")
#: Fields of options by the names of arguments.
FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
#: Arguments that may be given in place of options, in their order.
ARGUMENTS: dict[Any, tuple[str, ...]] = {
    c10d.AllreduceOptions: ("op", "timeout"), c10d.AllreduceCoalescedOptions: ("op", "timeout"),
    c10d.BroadcastOptions: ("root", "timeout"), c10d.ReduceOptions: ("root", "op", "timeout"),
    c10d.GatherOptions: ("root", "timeout"), c10d.ScatterOptions: ("root", "timeout"),
    c10d.ReduceScatterOptions: ("op", "timeout"), c10d.AllgatherOptions: ("timeout",),
    c10d.AllToAllOptions: ("timeout",), c10d.BarrierOptions: ("timeout",)}


def options_of(kind: type[Options], *given: Any, **named: Any) -> Options:
    """The options of a call.

    Args:
        kind: of the options.
        given: options, or what :data:`ARGUMENTS` says.
        named: likewise, or ``opts``.

    Raises:
        TypeError: there is no such argument.
    """
    options = named.pop("opts", None)
    if given and isinstance(given[0], kind):
        options, given = given[0], given[1:]
    if options is None:
        options = kind()
    names = ARGUMENTS[kind]
    if len(given) > len(names) or not named.keys() <= set(names):
        raise TypeError(f"expected {kind.__name__}, or {', '.join(names)}; got {given} {named}")
    for name, value in (*zip(names, given), *named.items()):
        setattr(options, FIELDS[name], value)
    return options


def listed(tensors: OneOrMore) -> Sequence[torch.Tensor]:
    """A list of one tensor, which may be given without the list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def one_list(lists: Sequence[OneOrMore]) -> Sequence[torch.Tensor]:
    """The only list of a list of lists, or a list that is given in its place; empty without one."""
    return listed(lists[0]) if lists and not isinstance(lists[0], torch.Tensor) else lists
