"""Cases: one collective, one size, one type, and the mpi4py call.

A case is the same on every rank. The input and the result of each rank follow from
:mod:`hpccoll.ir.collectives`, for every collective.

The size of a case is the larger of a rank's two buffers (nccl-tests); OSU's is the message:
one block where the collective has blocks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import BFLOAT16, is_bfloat16
from hpccoll.arrays.kernels import check_op
from hpccoll.calls.datatypes import datatype_of
from hpccoll.calls.specification import is_in_place
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, Collective, ExpectedBlock
from hpccoll.ir.methods import METHODS
from hpccoll.ir.operators import OPERATORS

#: Collectives whose blocks may differ in size.
UNEVEN = ("allgatherv", "gatherv", "scatterv", "alltoallv", "alltoallw", "reduce_scatter")
#: Collectives of blocks for which OSU's size is nevertheless the whole vector.
WHOLE = ("reduce_scatter", "reduce_scatter_block")
#: Weights of the blocks of an uneven case, in turn.
WEIGHTS = (1, 2, 3)


class Case(NamedTuple):
    """One row group of the benchmark.

    Attributes:
        size, root: ranks of the communicator, and the root.
        counts: elements of the blocks of one buffer: one for a vector, else one per rank.
        dtype, op: element type; name of the operator, or ``None``.
        in_place: pass ``MPI.IN_PLACE`` where the collective takes it.
        message: message size in bytes as OSU defines it.
    """

    collective: str
    size: int
    counts: tuple[int, ...]
    dtype: numpy.dtype
    op: str | None
    root: int
    in_place: bool
    message: int

    @property
    def rule(self) -> Collective:
        return COLLECTIVES[METHODS[self.collective]]

    @property
    def count(self) -> int:  # type: ignore[override]  # MPI's term; tuple.count is not used
        """Return the elements of a rank's larger buffer."""
        return sum(self.counts)

    @property
    def nbytes(self) -> int:
        """Return the bytes of a rank's larger buffer."""
        return self.count * self.dtype.itemsize

    def extent(self, block: int) -> int:
        """Return the elements of a block.

        Between two ranks both directions have one size, as in place requires, and every rank sends
        and receives blocks of all the sizes.
        """
        if self.rule.payload == "pairs":
            return self.counts[sum(divmod(block, self.size)) % self.size]
        return self.counts[block]

    def input_blocks(self, rank: int) -> list[int]:
        """Return the blocks of a rank's input buffer; the broadcast buffer of the root is one."""
        held = self.rule.given(rank, self.size, self.root, len(self.counts))
        return list(held.get(IN, held.get(OUT, ())))

    def expected_blocks(self, rank: int) -> list[ExpectedBlock]:
        """Return the blocks of a rank's output buffer and the ranks that contribute to them."""
        return self.rule.wanted(rank, self.size, self.root, len(self.counts))

    def shares(self, rank: int) -> bool:
        """Return True if a rank's input and output are one buffer."""
        return self.in_place and (not self.rule.rooted or rank == self.root)


def make(collective: str, size: int, nbytes: int, dtype: numpy.dtype, op: str = "sum",
         root: int = 0, in_place: bool = False, uneven: bool = False,
         osu: bool = False) -> Case:
    """Make the case nearest to a size; no block of equal blocks is empty.

    Args:
        nbytes: bytes of the larger buffer; with ``osu``, of the message as OSU defines it.
        dtype, op, root, in_place: as for the call; ``op`` is ignored unless it reduces.
        uneven: True for blocks of different sizes, if the collective permits them.
        osu: True if ``nbytes`` is a message size of OSU.
    """
    rule = COLLECTIVES[METHODS[collective]]
    elements = max(nbytes // dtype.itemsize, 1)
    if rule.payload in ("none", "vector"):
        counts = [elements] * (rule.payload == "vector")
        message = sum(counts) * dtype.itemsize
    else:
        blocked = osu and collective not in WHOLE
        each = elements if blocked else max(elements // size, 1)
        counts = [each] * size
        if uneven and collective in UNEVEN:
            mean = sum(WEIGHTS) / len(WEIGHTS)
            counts = [round(each * WEIGHTS[i % len(WEIGHTS)] / mean) for i in range(size)]
        message = each * dtype.itemsize * (size if collective in WHOLE else 1)
    in_place = in_place and collective not in ("bcast", "barrier")
    return Case(collective, size, tuple(counts), dtype, op if rule.reduces else None,
                root if rule.rooted else 0, in_place, message)


def data_type(text: str, op: str | None = None) -> numpy.dtype:
    """Parse a type by its NumPy or OSU name; check that it supports the operator."""
    osu = {"mpi_char": "int8", "mpi_int": "int32", "mpi_float": "float32"}
    try:
        if text == BFLOAT16:
            importlib.import_module("ml_dtypes")  # which registers the type
        dtype = numpy.dtype(osu.get(text.lower(), text))
        if not dtype.isnative or mpi_type(dtype) == MPI.DATATYPE_NULL or not (
                dtype.kind in "biufc" or is_bfloat16(dtype)):
            raise ValueError("not a numeric type of this MPI library")
    except ImportError as error:
        raise ArgumentError("--dtype", f"{text} requires the package ml_dtypes",
                            "pip install 'hpccoll[bf16]'") from error
    except (TypeError, ValueError) as error:
        raise ArgumentError("--dtype", f"cannot use {text!r}",
                            "give a NumPy name such as float32, int64 or complex128") from error
    if op is not None:
        if op not in OPERATORS or OPERATORS[op].pairs:
            raise ArgumentError.unknown_word(
                "--op", op, (o.name for o in OPERATORS.values() if not o.pairs))
        check_op(getattr(MPI, op.upper()), dtype, "--op")
    return dtype


def mpi_type(dtype: numpy.dtype) -> MPI.Datatype:
    """Return the MPI type of an element: a predefined one, not a duplicate of it."""
    return datatype_of(dtype) if is_bfloat16(dtype) else MPI.Datatype.fromcode(dtype.char)


def arguments(case: Case, rank: int, send: Any, recv: Any, op: MPI.Op | None = None) -> tuple:
    """Return the positional arguments of the mpi4py method for these buffers.

    ``op`` is for reductions; if omitted, MPI's predefined operator of the case's name.
    """
    if case.op is None:
        return _ARGUMENTS[case.collective](case, rank, send, recv)
    extra = {"reduce": (case.root,)}.get(case.collective, ())
    counts = [list(case.counts)] * (case.collective == "reduce_scatter")
    return send, recv, *counts, op or getattr(MPI, case.op.upper()), *extra


def _vector(case: Case, array: Any, counts: Sequence[int]) -> Any:
    """Return a buffer of blocks with their counts and displacements."""
    if is_in_place(array):  # or None, if a rank has no such buffer
        return array
    return [array, (list(counts), list(_displacements(counts)))]


def _with_types(case: Case, array: Any, counts: Sequence[int]) -> Any:
    """Return the same with displacements in bytes and a type for each block."""
    if is_in_place(array):
        return array
    displs = [d * case.dtype.itemsize for d in _displacements(counts)]
    return [array, (list(counts), displs), [mpi_type(case.dtype)] * len(counts)]


def _displacements(counts: Sequence[int]) -> Iterator[int]:
    start = 0
    for count in counts:
        yield start
        start += count


def _pairs(spec: Callable) -> Callable:
    def call(case, rank, send, recv):
        counts = [case.extent(rank * case.size + other) for other in range(case.size)]
        return spec(case, send, counts), spec(case, recv, counts)
    return call


#: Collectives that move data only.
_ARGUMENTS: dict[str, Callable] = {
    "barrier": lambda c, rank, send, recv: (),
    "bcast": lambda c, rank, send, recv: (recv, c.root),
    "allgather": lambda c, rank, send, recv: (send, recv),
    "allgatherv": lambda c, rank, send, recv: (send, _vector(c, recv, c.counts)),
    "gather": lambda c, rank, send, recv: (send, recv, c.root),
    "gatherv": lambda c, rank, send, recv: (send, _vector(c, recv, c.counts), c.root),
    "scatter": lambda c, rank, send, recv: (send, recv, c.root),
    "scatterv": lambda c, rank, send, recv: (_vector(c, send, c.counts), recv, c.root),
    "alltoall": lambda c, rank, send, recv: (send, recv),
    "alltoallv": _pairs(_vector),
    "alltoallw": _pairs(_with_types),
}
