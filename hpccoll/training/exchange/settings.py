"""How an exchange works: checked once, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.training.autotune import Knobs
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from hpccoll.training.compress import parse
from hpccoll.training.compress.dense import NoCompression
from hpccoll.training.compress.scheme import Scheme
from hpccoll.training.given import number
from hpccoll.units import byte_count

#: What becomes of the arrays of all ranks, and the MPI operator of it; Adasum has none.
OPS: dict[str, Any] = {"average": MPI.SUM, "sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX,
                        "adasum": None}
#: Buckets in one order on all ranks; what is ready everywhere, by agreement; the same by urgency.
FIXED, NEGOTIATED, PRIORITY = ORDERS = "fixed", "negotiated", "priority"
#: How a bucket travels: by a blocking call once all ranks have it; by a nonblocking one; the
#: first on one node, the second on several.
BLOCKING, NONBLOCKING, AUTO = TRANSFERS = "blocking", "nonblocking", "auto"
#: ByteScheduler's advice for allreduce (byteps@bytescheduler, docs/scheduling.md).
PARTITION_BYTES, CREDIT_BYTES = 8 << 20, 16 << 20


@dataclass(frozen=True)
class Recipe:
    """What is computed of one array.

    Attributes:
        op: one of :data:`OPS`.
        prescale, postscale: factors before and after the reduction.
    """

    op: str = "average"
    prescale: float = 1.0
    postscale: float = 1.0

    def check(self, name: str, dtype: str) -> None:
        """Refuse what cannot be computed for elements of this type.

        Raises:
            ArgumentError: it names the array.
        """
        if not isinstance(self.op, str) or self.op not in OPS:
            raise ArgumentError.unknown("op", self.op, OPS)
        whole = dtype.startswith(("int", "uint", "bool"))
        if whole and (self.op in ("average", "adasum") or self.prescale != 1
                      or self.postscale != 1):
            raise ArgumentError("op", f"array '{name}' has an integer type ({dtype}), which "
                                      f"{self.op} and factors round",
                                "use op='sum', or exchange floats")


@dataclass(frozen=True)
class ExchangeOptions:
    """What few exchanges need to set; every rank gives the same.

    Attributes:
        rebuild: cut buckets anew after the first step, in the order in which rank 0 saw arrays.
        partition_bytes: what is larger travels in pieces of so many bytes; 0 for whole ones, and
            for 8 MiB in order of priority.
        credit_bytes: under way at a time in order of priority; 0 for 16 MiB.
        vote_seconds: in negotiated order, how long an array waits for others at most.
        transfer: how a bucket travels: ``"blocking"`` (behind a gate where all ranks meet),
            ``"nonblocking"``, or ``"auto"``: the first on one node, the second on several.
        lanes: buckets under way at a time, of nonblocking transfers in fixed order.
        overlap: send buckets while others are not ready yet.

    Raises:
        ArgumentError: an unusable value.
    """

    rebuild: bool = True
    partition_bytes: int = 0
    credit_bytes: int = 0
    vote_seconds: float = 1.0
    transfer: str = AUTO
    lanes: int = 2
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.transfer not in TRANSFERS:
            raise ArgumentError.unknown("transfer", self.transfer, TRANSFERS)
        for name in ("partition_bytes", "credit_bytes"):
            object.__setattr__(self, name, byte_count(name, getattr(self, name)))
        if not number("vote_seconds", self.vote_seconds) >= 0:
            raise ArgumentError("vote_seconds", f"expected seconds, got {self.vote_seconds!r}")
        if not isinstance(self.lanes, int) or self.lanes < 1:
            raise ArgumentError("lanes", f"expected a number of lanes, got {self.lanes!r}")


@dataclass(frozen=True)
class ExchangeSettings(ExchangeOptions):
    """All that ranks must agree on beside the arrays; see :class:`Exchange` for each."""

    recipe: Recipe = Recipe()
    compress: Scheme | None = None
    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    order: str = FIXED
    algorithm: str = "auto"
    missing: str = "error"
    uneven: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("order", ORDERS), ("missing", ("error", "zeros"))):
            if getattr(self, name) not in choices:
                raise ArgumentError.unknown(name, getattr(self, name), choices)
        for name in ("bucket_bytes", "first_bucket_bytes"):
            object.__setattr__(self, name, byte_count(name, getattr(self, name)))
        if self.compress is not None and self.recipe.op not in ("average", "sum"):
            raise ArgumentError("compress", f"compression does not support {self.recipe.op}",
                                "choose op='average' or 'sum'")

    def resolved(self, one_node: bool) -> ExchangeSettings:
        """The same with what the machine and the order decide."""
        transfer = self.transfer
        if transfer == AUTO:
            transfer = BLOCKING if one_node else NONBLOCKING
        # Blocking calls on two communicators would wait for each other, ranks crosswise; a vote
        # decides one order, and so do gates.
        one = transfer == BLOCKING or self.uneven or self.order != FIXED
        partition, credit = self.partition_bytes, self.credit_bytes
        if self.order == PRIORITY:
            partition, credit = partition or PARTITION_BYTES, credit or CREDIT_BYTES
        return replace(self, transfer=transfer, lanes=1 if one else self.lanes,
                       partition_bytes=partition, credit_bytes=credit)

    @property
    def knobs(self) -> Knobs:
        """The part of it that autotuning may change."""
        return Knobs(self.bucket_bytes, self.partition_bytes, self.credit_bytes, self.algorithm)

    def text(self) -> str:
        """All of it as text, the same on ranks that agree."""
        return repr(self)


def scheme_of(compress: str | Scheme | None) -> Scheme | None:
    """The scheme of ``"topk:density=0.01"`` and its like; ``None`` where nothing is compressed.

    Raises:
        ArgumentError: an unknown name.
    """
    scheme = None if compress is None else parse(compress)
    return None if isinstance(scheme, NoCompression) else scheme
