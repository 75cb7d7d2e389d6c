"""Parameters whose weights are not here: they have a shape and a type, but no elements.

A parameter goes and comes by changing what it is, as PyTorch's own lazy parameters do: while its
weights are cut over the ranks it is an :class:`AbsentParameter`, whose memory is one number. Who
computes with it is answered by its owner, which fetches the weights, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

#: Properties that give out elements; all others only tell facts.
ELEMENTS = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
#: Functions that tell facts, or do nothing to elements.
FACTS = frozenset({
    torch.Tensor.size, torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.nelement,
    torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.element_size, torch.Tensor.__len__,
    torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.requires_grad_,
    torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook,
    torch.numel, torch.is_floating_point, torch.is_complex})


class Owner(Protocol):
    """Who has the weights of absent parameters."""

    def need(self, parameter: AbsentParameter) -> None:
        """Make a parameter present, or raise."""


class AbsentParameter(torch.nn.Parameter):
    """A parameter without elements."""

    _owner: Owner

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if _tells_facts(func):
            return super().__torch_function__(func, types, args, kwargs or {})
        for each in _absent((args, kwargs)):
            each._owner.need(each)
        return func(*args, **(kwargs or {}))

    def __repr__(self) -> str:
        return f"AbsentParameter({tuple(self.shape)}, {self.dtype})"


def take(parameter: torch.nn.Parameter, owner: Owner) -> None:
    """Take the weights away from a parameter."""
    nothing = torch.full((), float("nan"), dtype=parameter.dtype)
    parameter.data = nothing.expand(parameter.shape)
    parameter._owner = owner
    parameter.__class__ = AbsentParameter


def give(parameter: torch.nn.Parameter, weights: torch.Tensor,
         kind: type = torch.nn.Parameter) -> None:
    """Let a parameter be those weights, and of the class that it was of."""
    parameter.__class__ = kind
    parameter.data = weights


def _tells_facts(func: Callable[..., Any]) -> bool:
    if type(func).__name__ == "method-wrapper":  # of a property
        described: Any = func
        return func.__name__ != "__get__" or described.__self__.__name__ not in ELEMENTS
    return func in FACTS


def _absent(values: Any) -> Iterator[AbsentParameter]:
    if isinstance(values, AbsentParameter):
        yield values
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from _absent(each)
    elif isinstance(values, dict):
        yield from _absent(list(values.values()))
