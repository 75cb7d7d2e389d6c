"""Questions that need many simulated steps: which buckets, and when does compression pay?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from step_simulator import simulation
from step_simulator.collective_times import CollectiveTimes
from step_simulator.model import StepModel
from step_simulator.simulation import StepForecast, StepPlan

#: Bucket sizes that are compared where none are given.
BUCKETS = tuple(1 << shift for shift in range(20, 29))
#: How much slower or faster networks may be looked at, and how close to the answer is enough.
WIDEST, NEAR = 1024.0, 1.02


class BreakEven(NamedTuple):
    """From which network rate on a compressor no longer pays.

    Attributes:
        factor: that rate over the machine's own; infinite where it pays on every network that was
            looked at, 0 where on none.
        bytes_per_second: the rate: into each node where its link is what limits, or else of one
            rank.
    """

    factor: float
    bytes_per_second: float


def over_buckets(model: StepModel, plan: StepPlan, times: CollectiveTimes,
                 sizes: Iterable[int] = BUCKETS) -> list[StepForecast]:
    """The step with buckets of each size; the first one is never larger than the others.

    Raises:
        ArgumentError: a plan that cannot be used.
    """
    plans = [plan._replace(bucket_bytes=size,
                           first_bucket_bytes=min(size, plan.first_bucket_bytes))
             for size in sizes]
    scheme = simulation.checked(plan)
    # All sizes of all plans are timed together, so that few are simulated.
    times.learn(collective for each in plans for moved in simulation.moved(
        model, simulation.buckets_of(model, each), scheme, each.shard, times.size)
        for traffic in moved for collective in traffic.collectives)
    return [simulation.forecast(model, each, times) for each in plans]


def fastest(forecasts: Iterable[StepForecast]) -> StepForecast:
    """The one with the shortest step; of equals the first."""
    return min(forecasts, key=lambda each: each.seconds)


def break_even(model: StepModel, plan: StepPlan, times: CollectiveTimes) -> BreakEven:
    """Find the rate of the outermost level below which the plan's compressor makes steps shorter.

    Everything else of the machine, latencies too, stays as it is.

    Raises:
        ArgumentError: a plan that cannot be used.
    """
    plain = plan._replace(compress="none")

    def pays(factor: float) -> bool:
        slower = times.on(scaled(times.machine, factor))
        compressed, dense = (simulation.forecast(model, each, slower).seconds
                             for each in (plan, plain))
        return compressed < dense

    level = times.machine.levels[0]
    # A rank's messages and the link of its node grow together; the smaller one is what limits.
    rate = min(1 / level.beta if level.beta else float("inf"), level.link)
    low, high = 1 / WIDEST, WIDEST
    if not pays(low):
        return BreakEven(0.0, 0.0)
    if pays(high):
        return BreakEven(float("inf"), float("inf"))
    while high > low * NEAR:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) else (low, middle)
    return BreakEven(low, low * rate)


def scaled(machine: Any, factor: float) -> Any:
    """A machine whose outermost level moves bytes at ``factor`` times the rate."""
    outer = machine.levels[0]
    outer = replace(outer, beta=outer.beta / factor, link=outer.link * factor,
                    bus=outer.bus * factor)
    return replace(machine, levels=(outer, *machine.levels[1:]))
