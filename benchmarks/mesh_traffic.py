"""What the groups of a mesh send in a training step, and how long that takes on a machine.

The exchanges of a Transformer's step, axis by axis (activations have batch x sequence / sp x hidden
elements; sources beside them):

    dp ep sp  one allreduce of the gradients of a rank's parameters, over these axes together
    tp        4 allreduces of the activations in a layer (Megatron-LM: Shoeybi et al., 2019)
    sp        8 all-to-alls of the activations in a layer: 4 forward (DeepSpeed-Ulysses: Jacobs et
              al., 2023), and as many backward
    ep        4 all-to-alls of every chosen token in an expert layer: to the experts and back,
              forward and backward (GShard: Lepikhin et al., 2021)
    pp        activations to the next stage, and their gradients back

All groups of an axis run at the same time, as in a job, and share the links of their nodes: what
is simulated is one schedule of all ranks, made of those of the groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpccoll import Topology, schedule, simulate
from hpccoll.errors import ArgumentError
from hpccoll.training.groups.placement import Placement, paths_of
from hpccoll.units import size_text, time_text

#: Axes over which gradients of dense parameters are averaged.
GRADIENTS = ("dp", "ep", "sp")


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model and of one step, as far as groups exchange them.

    Attributes:
        parameters: of the whole model.
        layers: of attention and perceptron.
        hidden: elements of a token.
        sequence: tokens of a sample.
        batch: samples of one data-parallel replica in a step.
        itemsize: bytes of an element of activations.
        gradient_itemsize: bytes of an element of gradients.
        expert_layers: layers whose perceptron is a choice of experts.
        experts_per_token: experts that a token goes to.

    Raises:
        ArgumentError: a size that is negative.
    """

    parameters: int
    layers: int
    hidden: int
    sequence: int
    batch: int = 1
    itemsize: int = 2
    gradient_itemsize: int = 4
    expert_layers: int = 0
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 0:
                raise ArgumentError(name, f"is {value}", "pass 0 or more")


class GroupTraffic(NamedTuple):
    """What one kind of exchange costs in a training step.

    Attributes:
        axes: of the groups that exchange.
        collective: MPI's name, or ``"message"`` between stages.
        calls: of a rank.
        nbytes: of a rank's vector, or of its blocks together, in every call.
        sent: bytes that a rank sends, in the mean over all ranks.
        across: bytes that all ranks together send from node to node.
        seconds: one call after the other, all groups at once.
    """

    axes: tuple[str, ...]
    collective: str
    calls: float
    nbytes: float
    sent: float
    across: float
    seconds: float

    def __str__(self) -> str:
        return (f"{' x '.join(self.axes)}: {self.calls:g} {self.collective} of "
                f"{size_text(int(self.nbytes))}, {size_text(int(self.sent))} sent per rank, "
                f"{size_text(int(self.across))} across nodes in all, {time_text(self.seconds)}")


def traffic(placement: Placement, model: Transformer, machine: Any = "hdr") -> list[GroupTraffic]:
    """What each axis sends in one step, and how long that takes without overlap.

    Args:
        placement: of the mesh.
        model: sizes.
        machine: as of :func:`hpccoll.simulate`; its levels are those of the layout, outermost
            first.

    Raises:
        ArgumentError: an unknown machine.
    """
    return [_simulated(placement, *row, machine) for row in _rows(placement, model)]


def _rows(placement: Placement, model: Transformer
          ) -> Iterator[tuple[tuple[str, ...], str, float, float]]:
    """Axes, collective, calls and bytes of a call."""
    size = placement.sizes
    activations = model.batch * model.sequence * model.hidden * model.itemsize / size["sp"]
    layers = model.layers / size["pp"]
    reduced = tuple(axis for axis in GRADIENTS if size[axis] > 1)
    rows = [
        (reduced, "allreduce", 1.0,
         model.parameters * model.gradient_itemsize / (size["tp"] * size["pp"])),
        (("tp",), "allreduce", 4 * layers, activations),
        (("sp",), "alltoall", 8 * layers, activations / size["tp"]),
        (("ep",), "alltoall", 4 * model.expert_layers / size["pp"],
         activations * model.experts_per_token),
        (("pp",), "message", 2.0, activations)]
    for axes, collective, calls, nbytes in rows:
        if axes and size[axes[0]] > 1 and calls and nbytes:
            yield axes, collective, calls, nbytes


def _simulated(placement: Placement, axes: tuple[str, ...], collective: str, calls: float,
               nbytes: float, machine: Any) -> GroupTraffic:
    groups = placement.groups(*axes)
    ranks, members = len(placement.ranks), len(groups[0])
    # A flat layout is one node, and no network of single ranks.
    layout = part_of(placement.layout, range(ranks))
    made = _together(_one(collective, groups, placement), groups)
    # Blocks of an alltoall are parts of what a rank has for all ranks, not for its group.
    scale = 1.0 if made.collective.payload == "vector" else ranks / members
    report = simulate(made, nbytes * scale, machine, layout)
    innermost = list(report.level_bytes)[:layout.depth][-1]
    moved = sum(report.level_bytes.values())
    return GroupTraffic(axes, collective, calls, nbytes, calls * moved / ranks,
                        calls * (moved - report.level_bytes[innermost]),
                        calls * report.seconds)


def _one(collective: str, groups: Sequence[Sequence[int]], placement: Placement) -> Any:
    """The schedule of a group, the same for all: bandwidth-optimal, and little of it crosses."""
    size = len(groups[0])
    if collective == "alltoall":
        return schedule("alltoall", "pairwise", size)
    if collective == "message":
        return schedule("allreduce", _shift, size, nblocks=1)
    layouts = {part_of(placement.layout, group) for group in groups}
    if len(layouts) == 1 and placement.nodes(groups[0]) > 1:
        return schedule("allreduce", "rails", topology=layouts.pop())
    # A ring crosses to the next node once, wherever nodes end.
    return schedule("allreduce", "ring", size)


def _shift(rank: int, size: int) -> Any:
    """Every stage sends to the next one, all at once; the two sides are those of a broadcast."""
    gives, takes = (schedule("bcast", "linear", 2).program(end) for end in (0, 1))
    steps = [step._replace(peer=rank - 1) for step in takes.rounds[0] if rank > 0]
    steps += [step._replace(peer=rank + 1) for step in gives.rounds[0] if rank < size - 1]
    return gives._replace(rounds=(tuple(steps),))


def _together(one: Any, groups: Sequence[Sequence[int]]) -> Any:
    """A schedule of all ranks, in which every group runs the schedule of one."""
    seats = {rank: (group, seat) for group in groups for seat, rank in enumerate(group)}

    def build(rank: int) -> Any:
        group, seat = seats[rank]
        program = one.program(seat)
        return program._replace(rounds=tuple(
            tuple(step if step.peer < 0 else step._replace(peer=group[step.peer])
                  for step in steps) for steps in program.rounds))

    return dataclasses.replace(one, size=len(seats), build=build, rounds=None, sent=None)


def part_of(layout: Topology, group: Sequence[int]) -> Topology:
    """The layout of a group's ranks, numbered by their places in the group; nodes stay nodes.

    >>> print(part_of(Topology.parse("2x4"), [1, 2, 5]), part_of(Topology.parse(4), [0, 3]))
    2,1 1x2
    """
    paths = paths_of(layout)
    order = sorted(range(len(group)), key=lambda number: paths[group[number]])
    return Topology(_tree([paths[group[number]] for number in order]), tuple(order))


def _tree(paths: Sequence[tuple[int, ...]]) -> Any:
    """The groups of ranks that stand in the order of their paths."""
    if not paths[0]:
        return len(paths)
    near: dict[int, list[tuple[int, ...]]] = {}
    for path in paths:
        near.setdefault(path[0], []).append(path[1:])
    return tuple(map(_tree, near.values()))
