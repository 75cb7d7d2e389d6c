"""A step simulated: the plan of buckets, the collectives of each, and one rank's time with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccoll import Topology
from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    fitting_bucket_bytes,
    plan_buckets,
)
from hpccoll.training.trace import COMPRESS, FLIGHT, StepTimeline
from hpccoll.units import size_text, time_text
from step_simulator import program, traffic
from step_simulator.catalog import find
from step_simulator.collective_times import CollectiveTimes
from step_simulator.model import StepModel
from step_simulator.traffic import Traffic

if TYPE_CHECKING:
    from hpccoll.training.compress.scheme import Scheme

#: Stages of ZeRO; 0 is none.
STAGES = range(4)
#: Buckets under way at once in a real exchange across nodes.
LANES = 2


class StepPlan(NamedTuple):
    """How gradients are exchanged.

    Attributes:
        bucket_bytes, first_bucket_bytes: limits of :func:`~hpccoll.training.buckets.plan_buckets`.
        compress: scheme as text, such as ``"powersgd:rank=4"``, or ``"none"``.
        shard: stage of ZeRO.
        lanes: buckets under way at once; 0 as in a real exchange: 2 across nodes, 1 on one.
        overlap: with the backward pass.
        compress_rate: bytes per second of compressing and restoring together; 0 for what
            :data:`~step_simulator.traffic.PASSES` through memory take.
    """

    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    compress: str = "none"
    shard: int = 0
    lanes: int = 0
    overlap: bool = True
    compress_rate: float = 0.0


@dataclass(frozen=True)
class StepForecast:
    """A step, simulated.

    Attributes:
        model: what is trained.
        plan: how its gradients are exchanged.
        machine: name of the machine.
        topology: layout of the ranks.
        ranks: how many.
        seconds: of the step.
        alone: seconds of the step on one rank, which has nothing to exchange.
        exposed: seconds in which the program stands still for the exchange.
        flight: seconds in which the link is busy.
        compress: seconds of compressing and restoring.
        wire_bytes: that a rank sends, in the mean over ranks.
        buckets: how many.
        algorithms: of each collective, all that were the fastest for some bucket.
        timeline: of rank 0, as :mod:`hpccoll.training.trace` records it in a real run.
    """

    model: StepModel
    plan: StepPlan
    machine: str
    topology: str
    ranks: int
    seconds: float
    alone: float
    exposed: float
    flight: float
    compress: float
    wire_bytes: float
    buckets: int
    algorithms: Mapping[str, tuple[str, ...]]
    timeline: StepTimeline

    @property
    def efficiency(self) -> float:
        """Part of the work of as many lone ranks that is done in the same time."""
        return self.alone / self.seconds if self.seconds else 1.0

    @property
    def share(self) -> float:
        """Part of the step in which the program stands still."""
        return self.exposed / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the timeline."""
        return {
            "model": self.model.name, "source": self.model.source, **self.plan._asdict(),
            "machine": self.machine, "topology": self.topology, "ranks": self.ranks,
            "seconds": self.seconds, "alone_seconds": self.alone, "exposed_seconds": self.exposed,
            "flight_seconds": self.flight, "compress_seconds": self.compress,
            "wire_bytes": self.wire_bytes, "buckets": self.buckets,
            "efficiency": self.efficiency, "share": self.share,
            "algorithms": {name: list(used) for name, used in self.algorithms.items()}}

    def __str__(self) -> str:
        plan, model = self.plan, self.model
        how = "" if plan.compress == "none" else f", {plan.compress}"
        how += f", ZeRO {plan.shard}" if plan.shard else ""
        used = "; ".join(f"{name} {', '.join(each)}" for name, each in self.algorithms.items())
        return "\n".join([
            f"{model.name} on {self.ranks:,} ranks of {self.machine}, layout {self.topology}{how}",
            f"  gradients      {model.count:,} in {len(model.arrays)} arrays, "
            f"{size_text(model.nbytes)}; {self.buckets} buckets of "
            f"{size_text(plan.bucket_bytes)}",
            f"  times          {model.source}",
            f"  step           {time_text(self.seconds)}; alone {time_text(self.alone)}",
            f"  scaling        {self.efficiency:.1%}",
            f"  exposed        {time_text(self.exposed)}, {self.share:.1%} of the step",
            f"  link busy      {time_text(self.flight)}"
            + (f", compressing {time_text(self.compress)}" if self.compress else ""),
            f"  sent per rank  {size_text(self.wire_bytes)}",
            f"  algorithms     {used or 'none'}"]) + "\n"


def simulate_step(model: str | os.PathLike[str] | Mapping[str, Any] | StepModel, *,
                  nodes: int = 2, ppn: int | str = 1, machine: Any = "hdr",
                  topology: str | Topology | None = None, bucket_bytes: int | None = None,
                  first_bucket_bytes: int = FIRST_BUCKET_BYTES,
                  compress: str = "none", shard: int = 0, lanes: int = 0,
                  overlap: bool = True, compress_rate: float = 0.0, algorithm: str = "",
                  segment_bytes: int = 0, samples: int = 0, flops: float = 0.0) -> StepForecast:
    """Simulate a step of data-parallel training.

    Args:
        model: a name of :data:`~step_simulator.catalog.MODELS`, a file, or what
            ``exchange.profile()`` returned.
        nodes, ppn: nodes, and ranks of each; ``"2x4"`` for two groups of four.
        machine: name, file or description, as :func:`hpccoll.simulate` takes it.
        topology: any layout instead of nodes and ppn.
        bucket_bytes, first_bucket_bytes, compress, shard, lanes, overlap, compress_rate: of
            :class:`StepPlan`; buckets are those of a real exchange by default.
        algorithm: choice per collective, written as for ``HPCCOLL_ALGORITHM``; for all others the
            one that is fastest in simulation counts.
        segment_bytes: bytes of a block that travel as one message; 0 as in a real run.
        samples, flops: of :func:`~step_simulator.catalog.find`.

    Raises:
        ArgumentError: an unknown model, machine, scheme or algorithm; values that cannot be used.
    """
    layout = topology or f"{nodes}x{f'({ppn})' if ',' in str(ppn) else ppn}"
    found = find(model, samples, flops)
    plan = StepPlan(fitting_bucket_bytes(found.arrays) if bucket_bytes is None else bucket_bytes,
                    first_bucket_bytes, compress, shard, lanes, overlap, compress_rate)
    return forecast(found, plan,
                    CollectiveTimes(machine, layout, algorithm, segment_bytes))


def forecast(model: StepModel, plan: StepPlan, times: CollectiveTimes) -> StepForecast:
    """Simulate a step with collectives of known times.

    Raises:
        ArgumentError: a plan that cannot be used.
    """
    scheme = checked(plan)
    buckets = buckets_of(model, plan)
    down, up = moved(model, buckets, scheme, plan.shard, times.size)
    times.learn(collective for each in (*down, *up) for collective in each.collectives)
    cost = traffic.compress_seconds(scheme, times.machine.gamma, plan.compress_rate)
    begun = jobs("gradients" if up else "bucket", buckets, down, times, cost)
    gathered = jobs("parameters", buckets, up, times, 0.0)
    one_node = len(times.topology.groups()) == 1
    rank = program.SimulatedRank(plan.lanes or (1 if one_node else LANES))
    work = compute_of(model, buckets, times.size if plan.shard else 1)
    if plan.shard == 3 and times.size > 1:
        program.sharded(rank, work, begun, gathered)
    else:
        program.replicated(rank, work, begun, gathered, plan.overlap)
    used: dict[str, dict[str, None]] = {}
    for each in (*down, *up):
        for collective, nbytes in each.collectives:
            used.setdefault(collective, {})[times.taken(collective, nbytes).algorithm] = None
    alone = model.backward + model.optimizer
    return StepForecast(
        model, plan, times.machine.name, str(times.topology), times.size, rank.now, alone,
        rank.seconds_of(program.BLOCKED), rank.seconds_of(FLIGHT), rank.seconds_of(COMPRESS),
        sum(span.wire_bytes for span in rank.spans), len(buckets),
        {collective: tuple(names) for collective, names in used.items()},
        StepTimeline({0: rank.spans}))


def checked(plan: StepPlan) -> Scheme | None:
    """The scheme of a plan; ``None`` for none.

    Raises:
        ArgumentError: a stage, scheme, size or number of lanes that cannot be used.
    """
    if plan.shard not in STAGES:
        raise ArgumentError("shard", f"{plan.shard!r} is no stage of ZeRO", "choose from 0 to 3")
    if plan.lanes < 0:
        raise ArgumentError("lanes", f"{plan.lanes!r} is no number of lanes", "give 1 or more")
    if plan.bucket_bytes < 0 or plan.first_bucket_bytes < 0:
        raise ArgumentError("bucket_bytes", "is negative", "give bytes, or 0 for a bucket of each")
    scheme = None if plan.compress == "none" else _parsed(plan.compress)
    if plan.shard and scheme is not None and not scheme.dense:
        raise ArgumentError("compress", f"{plan.compress} does not go with ZeRO",
                            "choose a scheme that sends every element, such as bf16")
    return scheme


def _parsed(text: str) -> Scheme:
    # Schemes need MPI; a step without one is simulated where there is none.
    from hpccoll.training.compress import parse
    return parse(text)


def buckets_of(model: StepModel, plan: StepPlan) -> tuple[Bucket, ...]:
    """The buckets, in the order in which a real exchange sends them after its first step."""
    return plan_buckets(model.arrays, plan.bucket_bytes, plan.first_bucket_bytes, model.order)


def moved(model: StepModel, buckets: Sequence[Bucket], scheme: Scheme | None, stage: int,
          size: int) -> tuple[list[Traffic], list[Traffic]]:
    """What moves gradients, and what moves parameters, bucket by bucket."""
    down = [traffic.gradients(b, model.arrays, scheme, stage, size) for b in buckets]
    return down, [traffic.parameters(b, size) for b in buckets] if stage else []


def jobs(name: str, buckets: Sequence[Bucket], moved: Sequence[Traffic], times: CollectiveTimes,
         seconds_per_byte: float) -> list[program.BucketJob]:
    """Buckets with the times of all they go through."""
    return [program.BucketJob(f"{name} {number}", bucket.nbytes, each.wire_bytes,
                        traffic.parts(each, times, seconds_per_byte))
            for number, (bucket, each) in enumerate(zip(buckets, moved))]


def compute_of(model: StepModel, buckets: Sequence[Bucket], shards: int) -> program.Compute:
    """The work between buckets becoming ready, which never goes back in time."""
    now, backward = model.forward, []
    for bucket in buckets:
        ready = max(now, *(model.ready[index] for index in bucket.members))
        backward.append(ready - now)
        now = ready
    return program.Compute(model.forward, tuple(backward), max(model.backward - now, 0.0),
                           model.optimizer / shards)
