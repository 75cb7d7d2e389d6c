"""What a bucket costs in a step: the collectives it sends, and the time to compress it.

Bytes on the wire are those of :meth:`Scheme.wire_bytes`, which tests compare with what a real run
sends; here they are dealt out to the collectives that a scheme is made of. Stages of ZeRO send
gradients by reduce-scatter and parameters by allgather (Rajbhandari et al., SC 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpccoll.training.buckets import ArraySpec, Bucket
from hpccoll.training.trace import COMPRESS, FLIGHT
from step_simulator.collective_times import CollectiveTimes

if TYPE_CHECKING:
    from hpccoll.training.compress.scheme import Scheme

ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL = (
    "allreduce", "reduce_scatter", "allgather", "alltoall")
#: The collectives of a scheme, which share its bytes on the wire evenly; all others allreduce.
COLLECTIVES = {
    "int8": (ALLTOALL, ALLGATHER), "onebit": (ALLTOALL, ALLGATHER),
    "dithering": (ALLTOALL, ALLGATHER), "topk": (ALLGATHER,), "csc": (ALLREDUCE, ALLREDUCE),
    "powersgd": (ALLREDUCE, ALLREDUCE)}
#: How often compressing and restoring go through a bucket's memory: an assumption, counted from
#: what the schemes do; ``compress_rate`` replaces it by what was measured.
PASSES = {"fp16": 2, "bf16": 2, "int8": 6, "onebit": 8, "dithering": 8, "topk": 8, "randomk": 4,
          "csc": 5, "powersgd": 8}
USUAL_PASSES = 4


class TrafficPart(NamedTuple):
    """One thing after the other that happens to a bucket.

    Attributes:
        phase: :data:`~hpccoll.training.trace.COMPRESS` or ``FLIGHT``.
        seconds: how long it takes.
        algorithm: of the collective; empty where there is none.
    """

    phase: str
    seconds: float
    algorithm: str = ""


class Traffic(NamedTuple):
    """What moves one bucket, in one direction.

    Attributes:
        collectives: what is sent, and for each the bytes of a rank's vector, or of all its blocks.
        wire_bytes: that a rank sends, in the mean over ranks.
        compressed: bytes to be compressed before, and restored after.
    """

    collectives: tuple[tuple[str, float], ...]
    wire_bytes: float
    compressed: float = 0.0


def gradients(bucket: Bucket, specs: Sequence[ArraySpec], scheme: Scheme | None, stage: int,
              size: int) -> Traffic:
    """What it takes to reduce the gradients of a bucket."""
    names = (ALLREDUCE,) if not stage else (REDUCE_SCATTER,)
    if scheme is None or size == 1:
        return _even(names, _wire(names[0], bucket.nbytes, size), size)
    wire = scheme.wire_bytes([specs[index].shape for index in bucket.members], size)
    if stage:
        # Only dense schemes get here: half of their allreduce is a reduce-scatter.
        return _even(names, wire / 2, size, bucket.nbytes)
    if wire >= _wire(ALLREDUCE, bucket.nbytes, size):
        # Where a few elements are no fewer bytes than all of them, schemes send all.
        return _even((ALLREDUCE,), wire, size, bucket.nbytes)
    return _even(COLLECTIVES.get(scheme.name, names), wire, size, bucket.nbytes)


def parameters(bucket: Bucket, size: int) -> Traffic:
    """What it takes to gather the parameters of a bucket from their shards."""
    return _even((ALLGATHER,), _wire(ALLGATHER, bucket.nbytes, size), size)


def parts(traffic: Traffic, times: CollectiveTimes, seconds_per_byte: float
          ) -> tuple[TrafficPart, ...]:
    """The traffic with its times, in order: half of compressing's before, half after."""
    half = traffic.compressed * seconds_per_byte / 2
    flights = [TrafficPart(FLIGHT, *times.taken(*collective)) for collective in traffic.collectives]
    work = [TrafficPart(COMPRESS, half)] if half else []
    return (*work, *flights, *work)


def compress_seconds(scheme: Scheme | None, gamma: float, rate: float = 0.0) -> float:
    """Seconds to compress and restore one byte.

    Args:
        scheme: how.
        gamma: seconds for each byte of a pass through memory, of the machine.
        rate: bytes per second of both together, where that was measured.
    """
    if scheme is None:
        return 0.0
    return 1 / rate if rate else PASSES.get(scheme.name, USUAL_PASSES) * gamma


def _wire(collective: str, nbytes: float, size: int) -> float:
    return nbytes * (size - 1) / size * (2 if collective == ALLREDUCE else 1)


def _even(names: Sequence[str], wire_bytes: float, size: int, compressed: float = 0.0) -> Traffic:
    """Collectives that send so many bytes together, each as many."""
    if size == 1:
        return Traffic((), 0.0)
    each = wire_bytes / len(names)
    return Traffic(tuple((name, each / _wire(name, 1.0, size)) for name in names), wire_bytes,
                   compressed)
