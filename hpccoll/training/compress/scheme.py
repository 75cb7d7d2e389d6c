"""What a compression scheme is: a frozen wish, and the state it keeps for one bucket on one rank.

    Scheme --start(comm, shapes)--> Reduction --reduce(values)--> requests, one after the other

A reduction is written as a generator: wherever it must wait for other ranks it yields the request
of a nonblocking collective, and is resumed when that is complete. So whoever drives it may do
other work meanwhile, and compress one bucket while another one is in flight; :func:`finish`
simply waits. All ranks start the same reductions in the same order on a communicator.

State changes at the end of a step only: a step that fails leaves it as it was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy

from hpccoll.errors import ArgumentError, NonFiniteError
from hpccoll.errors.waits import rank_list

Steps = Generator[Any, None, None]
Shapes = Sequence[tuple[int, ...]]
#: Bytes of an element of which :meth:`Scheme.wire_bytes` speaks.
ITEMSIZE = 4


class Scheme(ABC):
    """How a bucket travels; frozen, and the same on all ranks.

    Subclasses are frozen dataclasses whose fields are the parameters, checked when one is made.
    ``str`` gives the text that :func:`~hpccoll.training.compress.parse` reads.
    """

    #: What :func:`~hpccoll.training.compress.parse` knows it by.
    name: ClassVar[str]
    #: The result is that of no compression, but for rounding in the type that travels.
    dense: ClassVar[bool] = False
    #: NaN and infinity come through; otherwise they are a ``NonFiniteError`` on all ranks.
    carries_nan: ClassVar[bool] = False

    @abstractmethod
    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        """Make the state for a bucket of arrays of these shapes, one behind the other.

        Communicates nothing.
        """

    @abstractmethod
    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        """Bytes that one of ``size`` ranks sends for one bucket of float32, in the mean over ranks.

        With bandwidth-optimal collectives: an allreduce of n bytes counts 2n(P-1)/P, a
        reduce-scatter, an allgather of n bytes in all, and an alltoall n(P-1)/P.

        Args:
            shapes: of the arrays in the bucket.
            size: ranks.
            step: number of the step, from 0; one after :attr:`settling` if omitted.
        """

    @property
    def settling(self) -> int:
        """Steps at the start that send more than later ones."""
        return 0

    def __str__(self) -> str:
        chosen = [f"{field.name}={_text(getattr(self, field.name))}"
                  for field in fields(self)  # type: ignore[arg-type]
                  if getattr(self, field.name) != field.default]
        return f"{self.name}:{','.join(chosen)}" if chosen else self.name

    def check(self, field: str, right: bool, wanted: str) -> None:
        """Raise an ``ArgumentError`` that names a field unless its value is right."""
        if not right:
            raise ArgumentError(f"{self.name}: {field}", f"got {getattr(self, field)!r}",
                                f"it is {wanted}")


class Reduction(ABC):
    """One bucket on one rank, from step to step.

    Args:
        scheme: how it travels.
        comm: the ranks; collectives of this reduction are made on it.
        shapes: of the arrays in the bucket.

    Attributes:
        count: elements of the bucket.
        steps: how many were made.
        vectors: what is remembered for every element, by name.
    """

    def __init__(self, scheme: Scheme, comm: Any, shapes: Shapes):
        self.scheme, self.comm, self.shapes = scheme, comm, tuple(shapes)
        self.size, self.rank = comm.Get_size(), comm.Get_rank()
        self.count, self.steps = elements(shapes), 0
        self.vectors: dict[str, Any] = {}

    def reduce(self, values: Any) -> Steps:
        """Replace ``values`` by the mean over the ranks, or what the scheme makes of it.

        Args:
            values: contiguous vector of float32 or float64, the bucket's elements. After an error
                it holds nothing of use.

        Raises:
            ArgumentError: another vector; before anything is sent.
            NonFiniteError: the scheme cannot carry NaN or infinity; on all ranks.
        """
        if values.ndim != 1 or values.size != self.count or values.dtype not in ("f4", "f8"):
            raise ArgumentError("values", f"{values.dtype} of shape {values.shape}",
                                f"pass a vector of {self.count} float32 or float64")
        if self.count:
            yield from self._reduce(values)
        self.steps += 1

    @abstractmethod
    def _reduce(self, values: Any) -> Steps:
        """Do it, for at least one element."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart or another cut into buckets; collective.

        Vectors with one value for each element of the bucket, by name: error feedback keeps
        what was not sent under ``"error"``, and of chunks that ranks own under ``"owner_error"``,
        gathered. Lists with an entry for each array. Numbers, which are the bucket's.
        :mod:`~hpccoll.training.compress.states` cuts and joins them.
        """
        return {"steps": self.steps, **{name: one.copy() for name, one in self.vectors.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave, here or for the same elements of other buckets.

        On another number of ranks, every rank loads the mean of the old ones' states.

        Raises:
            ArgumentError: vectors of another length.
        """
        self.steps = int(state.get("steps", 0))
        self.vectors = {}
        for name, one in state.items():
            if getattr(one, "ndim", 0) == 1:
                if one.size != self.count:
                    raise ArgumentError("state", f"{name} has {one.size} elements, the bucket "
                                        f"{self.count}", "partition it like the buckets")
                self.vectors[name] = one.copy()

    def held(self) -> Any:
        """What was held back: a vector to add to this rank's values of the next step.

        ``None`` where nothing was. Communicates nothing.
        """
        error = self.vectors.get("error")
        return None if error is None else error.copy()

    def wire_bytes(self) -> float:
        """Bytes that a rank sends in the next step, in the mean over ranks; see the scheme's."""
        return self.scheme.wire_bytes(self.shapes, self.size, self.steps)

    def vector(self, name: str, like: Any) -> Any:
        """What is remembered under a name, in the type of ``like``; zeros at first."""
        held = self.vectors.get(name)
        if held is None:
            held = like.copy()
            held.fill(0)
        elif held.dtype != like.dtype:
            held = held.astype(like.dtype)
        self.vectors[name] = held
        return held

    def refuse(self, here: bool) -> Steps:
        """Find out on which ranks values are not finite, and say so on all of them.

        Args:
            here: they are not, on this rank.
        """
        flags = numpy.empty(self.size, "u1")
        yield self.comm.Iallgather(numpy.array([here], "u1"), flags)
        ranks = tuple(numpy.flatnonzero(flags).tolist())
        whose = f"on {rank_list(ranks)}" if ranks else "in the sum over the ranks"
        raise NonFiniteError(f"values are NaN or infinite {whose}, and scheme '{self.scheme}' "
                             "would keep them in its state; skip this step, or use a stateless "
                             "scheme, such as 'bf16'", ranks)


def elements(shapes: Shapes) -> int:
    """Elements of all arrays together."""
    return sum(map(math.prod, shapes))


def allreduce_bytes(nbytes: float, size: int) -> float:
    """Bytes that a rank sends in an allreduce, in the mean over the ranks."""
    return 2 * nbytes * (size - 1) / size


def finish(steps: Steps) -> None:
    """Drive a reduction to its end, waiting for every request in turn."""
    for request in steps:
        request.Wait()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
