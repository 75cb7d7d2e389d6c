"""Arguments of a process group's methods: torch's options, or their short forms.

``torch.distributed`` passes options. Hooks and programs that call the group directly may omit them,
pass only the operator or root, and pass one tensor instead of a list of one.
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
#: Arguments that may be passed instead of options, in order.
ARGUMENTS: dict[Any, tuple[str, ...]] = {
    c10d.AllreduceOptions: ("op", "timeout"), c10d.AllreduceCoalescedOptions: ("op", "timeout"),
    c10d.BroadcastOptions: ("root", "timeout"), c10d.ReduceOptions: ("root", "op", "timeout"),
    c10d.GatherOptions: ("root", "timeout"), c10d.ScatterOptions: ("root", "timeout"),
    c10d.ReduceScatterOptions: ("op", "timeout"), c10d.AllgatherOptions: ("timeout",),
    c10d.AllToAllOptions: ("timeout",), c10d.BarrierOptions: ("timeout",)}


def options_of(kind: type[Options], *given: Any, **named: Any) -> Options:
    """Return the options of a call.

    Args:
        kind: class of the options.
        given: options, or arguments of :data:`ARGUMENTS`.
        named: the same as keywords, or ``opts``.

    Raises:
        TypeError: unknown argument.
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


def as_list(tensors: OneOrMore) -> Sequence[torch.Tensor]:
    """Return a list of tensors for a list or a single tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def one_list(lists: Sequence[OneOrMore]) -> Sequence[torch.Tensor]:
    """Return the only list of a list of lists, or a plain list; empty without one."""
    return as_list(lists[0]) if lists and not isinstance(lists[0], torch.Tensor) else lists
