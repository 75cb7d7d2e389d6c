"""Base classes: Scheme (frozen parameters) and Reduction (state of one bucket).

    Scheme --start(comm, shapes)--> Reduction --reduce(values)--> requests, one after the other

A reduction is a generator. It yields the request of a nonblocking collective and is resumed when
the request is complete. The driver can therefore do other work in between, and compress one bucket
while another one is in flight; :func:`finish` waits for each request. All ranks start the same
reductions in the same order on a communicator.

State changes only at the end of a step; a failed step leaves it unchanged.
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
from hpccoll.training.compress.quantise import namespace

Steps = Generator[Any, None, None]
Shapes = Sequence[tuple[int, ...]]
#: Size of an uncompressed element in :meth:`Scheme.wire_bytes`.
ITEMSIZE = 4


class Scheme(ABC):
    """Parameters of a compression scheme; frozen, and the same on all ranks.

    Subclasses are frozen dataclasses whose fields are the parameters, validated on creation.
    ``str`` returns the text that :func:`~hpccoll.training.compress.parse` parses.
    """

    #: Name for :func:`~hpccoll.training.compress.parse`.
    name: ClassVar[str]
    #: The result equals that without compression, except for rounding in the wire type.
    dense: ClassVar[bool] = False
    #: NaN and infinity are preserved; otherwise they raise ``NonFiniteError`` on all ranks.
    carries_nan: ClassVar[bool] = False

    #: Class of the state of a bucket.
    reduction: ClassVar[type[Reduction]]

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        """Return the reduction for a bucket of contiguous arrays of these shapes.

        Does not communicate.
        """
        return self.reduction(self, comm, shapes)

    @abstractmethod
    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        """Return the bytes that a rank sends for one float32 bucket, as the mean over ranks.

        Assumes bandwidth-optimal collectives: 2n(P-1)/P for an allreduce of n bytes; n(P-1)/P for
        a reduce-scatter, an allgather of n bytes in total, and an alltoall.

        Args:
            shapes: shapes of the arrays in the bucket.
            size: number of ranks.
            step: index of the step, from 0; a step after :attr:`warmup_steps` if omitted.
        """

    @property
    def warmup_steps(self) -> int:
        """Number of steps at the start that send more than later ones."""
        return 0

    def __str__(self) -> str:
        chosen = [f"{field.name}={_text(getattr(self, field.name))}"
                  for field in fields(self)  # type: ignore[arg-type]
                  if getattr(self, field.name) != field.default]
        return f"{self.name}:{','.join(chosen)}" if chosen else self.name

    def check(self, field: str, right: bool, wanted: str) -> None:
        """Raise an ArgumentError for ``field`` unless ``right`` is true."""
        if not right:
            raise ArgumentError(f"{self.name}: {field}", f"got {getattr(self, field)!r}",
                                f"it is {wanted}")


class Reduction(ABC):
    """State of one bucket on one rank.

    Args:
        scheme: the compression scheme.
        comm: communicator of this reduction's collectives.
        shapes: shapes of the arrays in the bucket.

    Attributes:
        count: elements of the bucket.
        steps: number of completed steps.
        vectors: state with one value for each element, by name.
    """

    def __init__(self, scheme: Scheme, comm: Any, shapes: Shapes):
        self.scheme, self.comm, self.shapes = scheme, comm, tuple(shapes)
        self.size, self.rank = comm.Get_size(), comm.Get_rank()
        self.count, self.steps = elements(shapes), 0
        self.vectors: dict[str, Any] = {}

    def reduce(self, values: Any) -> Steps:
        """Replace ``values`` by the mean over the ranks, or its approximation.

        Args:
            values: the bucket, a contiguous vector of float32 or float64. Its contents are
                undefined after an error.

        Raises:
            ArgumentError: not such a vector; raised before anything is sent.
            NonFiniteError: the scheme cannot represent NaN or infinity; on all ranks.
        """
        if values.ndim != 1 or values.size != self.count or values.dtype not in ("f4", "f8"):
            raise ArgumentError("values", f"{values.dtype} of shape {values.shape}",
                                f"pass a vector of {self.count} float32 or float64")
        if self.count:
            yield from self._reduce(values)
        self.steps += 1

    @abstractmethod
    def _reduce(self, values: Any) -> Steps:
        """Run the reduction of at least one element."""

    def state(self) -> dict[str, Any]:
        """Return the state for a restart or for other buckets; collective.

        Vectors have one value for each element of the bucket, by name: error feedback stores its
        residual as ``"error"``, and the gathered residuals of owned chunks as ``"owner_error"``.
        Lists have one entry for each array. Numbers belong to the bucket.
        :mod:`~hpccoll.training.compress.states` splits and joins states.
        """
        return {"steps": self.steps, **{name: one.copy() for name, one in self.vectors.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state`, also one of other buckets for these elements.

        For another number of ranks, each rank loads the mean of the old ranks' states.

        Raises:
            ArgumentError: vectors have another length.
        """
        self.steps = int(state.get("steps", 0))
        self.vectors = {}
        for name, one in state.items():
            if getattr(one, "ndim", 0) == 1:
                if one.size != self.count:
                    raise ArgumentError("state", f"{name} has {one.size} elements, the bucket "
                                        f"{self.count}", "partition it like the buckets")
                self.vectors[name] = one.copy()

    def residual(self) -> Any:
        """Return the residual: a vector to add to this rank's values of the next step.

        ``None`` without a residual. Does not communicate.
        """
        error = self.vectors.get("error")
        return None if error is None else error.copy()

    def wire_bytes(self) -> float:
        """Return the bytes that a rank sends in the next step; see :meth:`Scheme.wire_bytes`."""
        return self.scheme.wire_bytes(self.shapes, self.size, self.steps)

    def vector(self, name: str, like: Any) -> Any:
        """Return a state vector in the dtype of ``like``; initially zeros."""
        held = self.vectors.get(name)
        if held is None:
            held = like.copy()
            held.fill(0)
        elif held.dtype != like.dtype:
            held = held.astype(like.dtype)
        self.vectors[name] = held
        return held

    def reject_nonfinite(self, here: bool) -> Steps:
        """Gather which ranks have non-finite values (``here`` on this one), and raise on all."""
        flags = numpy.empty(self.size, "u1")
        yield self.comm.Iallgather(numpy.array([here], "u1"), flags)
        ranks = tuple(numpy.flatnonzero(flags).tolist())
        whose = f"on {rank_list(ranks)}" if ranks else "in the sum over the ranks"
        raise NonFiniteError(f"values are NaN or infinite {whose}, and scheme '{self.scheme}' "
                             "would keep them in its state; skip this step, or use a stateless "
                             "scheme, such as 'bf16'", ranks)


def elements(shapes: Shapes) -> int:
    """Return the total number of elements of arrays."""
    return sum(map(math.prod, shapes))


def all_finite(values: Any) -> bool:
    """Return True if all values are finite; allocates no vector of Booleans."""
    module = namespace(values)
    with numpy.errstate(all="ignore"):
        return values.size == 0 or bool(module.isfinite(values.max()) and
                                        module.isfinite(values.min()))


def allreduce_bytes(nbytes: float, size: int) -> float:
    """Return the bytes that a rank sends in an allreduce, as the mean over ranks."""
    return 2 * nbytes * (size - 1) / size


def finish(steps: Steps) -> None:
    """Run a reduction to completion; wait for each of its requests."""
    for request in steps:
        request.Wait()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
