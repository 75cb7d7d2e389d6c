"""Settings of an exchange, validated once and equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.training.arguments import as_number
from hpccoll.training.arrays import FLOAT8
from hpccoll.training.autotune import Knobs
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from hpccoll.training.compress import parse
from hpccoll.training.compress.dense import NoCompression
from hpccoll.training.compress.scheme import Scheme
from hpccoll.units import byte_count

#: Reductions and their MPI operators; Adasum has none.
OPS: dict[str, Any] = {"average": MPI.SUM, "sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX,
                        "adasum": None}
#: Orders: planned buckets; arrays that are ready on all ranks; such arrays by priority.
FIXED, NEGOTIATED, PRIORITY = ORDERS = "fixed", "negotiated", "priority"
#: Transfers of a bucket: a blocking call once all ranks have it; a nonblocking call; automatic:
#: blocking on one node, nonblocking on several.
BLOCKING, NONBLOCKING, AUTO = TRANSFERS = "blocking", "nonblocking", "auto"
#: Recommended by ByteScheduler for allreduce (byteps@bytescheduler, docs/scheduling.md).
PARTITION_BYTES, CREDIT_BYTES = 8 << 20, 16 << 20


@dataclass(frozen=True)
class Recipe:
    """Reduction and scaling of one array."""

    op: str = "average"
    prescale: float = 1.0
    postscale: float = 1.0

    def check(self, name: str, dtype: str) -> None:
        """Raise ArgumentError if the reduction is not defined for a dtype."""
        if not isinstance(self.op, str) or self.op not in OPS:
            raise ArgumentError.unknown_word("op", self.op, OPS)
        whole = dtype.startswith(("int", "uint", "bool"))
        if whole and (self.op in ("average", "adasum") or self.prescale != 1
                      or self.postscale != 1):
            raise ArgumentError("op", f"array '{name}' has an integer type ({dtype}), which "
                                      f"{self.op} and factors round",
                                "use op='sum', or exchange floats")
        if dtype.startswith(FLOAT8):
            raise ArgumentError("op", f"array '{name}' has elements of {dtype}, which cannot be "
                                      "added", "exchange it as float32 or bfloat16")


@dataclass(frozen=True)
class ExchangeOptions:
    """Rarely used settings; equal on every rank.

    Attributes:
        rebuild: replan buckets after the first step, in rank 0's order of submission.
        partition_bytes: largest size of a piece; 0 for no partition, and for 8 MiB in priority
            order.
        credit_bytes: bytes in flight at a time in priority order; 0 for 16 MiB.
        vote_seconds: in negotiated order, the longest time that an array waits for others.
        transfer: transfer of a bucket: ``"blocking"`` (after a barrier of all ranks),
            ``"nonblocking"``, or ``"auto"``: blocking on one node, nonblocking on several.
        lanes: buckets in flight at a time, for nonblocking transfers in fixed order.
        overlap: send complete buckets before all arrays are ready.

    Raises:
        ArgumentError: an invalid value.
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
            raise ArgumentError.unknown_word("transfer", self.transfer, TRANSFERS)
        for name in ("partition_bytes", "credit_bytes"):
            object.__setattr__(self, name, byte_count(name, getattr(self, name)))
        if not as_number("vote_seconds", self.vote_seconds) >= 0:
            raise ArgumentError("vote_seconds", f"expected seconds, got {self.vote_seconds!r}")
        if not isinstance(self.lanes, int) or self.lanes < 1:
            raise ArgumentError("lanes",
                                f"expected a number of lanes, got {self.lanes!r}")


@dataclass(frozen=True)
class ExchangeSettings(ExchangeOptions):
    """All settings that must be equal on all ranks; see :class:`Exchange`."""

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
                raise ArgumentError.unknown_word(name, getattr(self, name), choices)
        for name in ("bucket_bytes", "first_bucket_bytes"):
            object.__setattr__(self, name, byte_count(name, getattr(self, name)))
        if self.compress is not None and self.recipe.op not in ("average", "sum"):
            raise ArgumentError("compress", f"compression does not support {self.recipe.op}",
                                "choose op='average' or 'sum'")

    def resolve_defaults(self, one_node: bool) -> ExchangeSettings:
        """Return a copy with the defaults for the machine and the order."""
        transfer = self.transfer
        if transfer == AUTO:
            transfer = BLOCKING if one_node else NONBLOCKING
        # Blocking calls on two communicators in different orders would deadlock; votes and
        # barriers fix one order.
        one = transfer == BLOCKING or self.uneven or self.order != FIXED
        partition, credit = self.partition_bytes, self.credit_bytes
        if self.order == PRIORITY:
            partition, credit = partition or PARTITION_BYTES, credit or CREDIT_BYTES
        return replace(self, transfer=transfer, lanes=1 if one
                       else self.lanes,
                       partition_bytes=partition, credit_bytes=credit)

    @property
    def knobs(self) -> Knobs:
        """Return the settings that autotuning may change."""
        return Knobs(self.bucket_bytes, self.partition_bytes, self.credit_bytes, self.algorithm)

    def text(self) -> str:
        """Return all settings as text, equal on ranks with equal settings."""
        return repr(self)


def scheme_of(compress: str | Scheme | None) -> Scheme | None:
    """Return the scheme of ``"topk:density=0.01"`` or the like; ``None`` for no compression."""
    scheme = None if compress is None else parse(compress)
    return None if isinstance(scheme, NoCompression) else scheme
