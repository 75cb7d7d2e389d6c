"""Mesh: one communicator for each axis of parallel training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpccoll.training.groups.placement import AXES, Placement, place


def mesh(comm: Any, *, dp: int | None = None, tp: int | None = None, pp: int | None = None,
         sp: int | None = None, ep: int | None = None, order: Sequence[str] = tuple(AXES)) -> Mesh:
    """Split a communicator into parallel groups; collective.

    Groups follow the communicator's layout: tensor-parallel groups inside nodes, data-parallel
    groups across nodes (:func:`place`).

    Args:
        comm: a :class:`hpccoll.Comm`.
        dp: data-parallel size; derived from the others if omitted.
        tp, pp, sp, ep: sizes of the tensor-parallel, pipeline, sequence and expert axes; 1 if
            omitted. One size may be -1, to be derived from the others.
        order: the axes, outermost first.

    Raises:
        ArgumentError: on all ranks, if the product of sizes is not the number of ranks.
    """
    return Mesh(comm, place(comm.layout, order, dp=dp, tp=tp, pp=pp, sp=sp, ep=ep))


class Mesh:
    """Groups of one rank; created by :func:`mesh`.

    Attributes:
        placement: placement of the groups of all ranks.
        coordinates: coordinate of this rank on each axis.
        dp, tp, pp, sp, ep: communicators of the ranks that differ from this one on one axis only,
            which names them; the rank in them is the coordinate on the axis.
    """

    dp: Any
    tp: Any
    pp: Any
    sp: Any
    ep: Any

    def __init__(self, comm: Any, placement: Placement):
        self.placement, self._comm = placement, comm
        self.coordinates = placement.coordinates(comm.Get_rank())
        self._created: dict[tuple[str, ...], Any] = {}
        for axis in placement.axes:
            setattr(self, axis, self.over(axis))

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis."""
        return self.placement.sizes

    def over(self, *axes: str) -> Any:
        """Return the communicator of the ranks that differ from this one on these axes only.

        The first call for these axes is collective over all ranks; the result is cached until
        :meth:`Free`. Average gradients of dense parameters over ``"dp", "ep", "sp"``.

        Raises:
            ArgumentError: unknown axis.
        """
        names = tuple(axis for axis in self.placement.axes if axis in axes)
        if names not in self._created:
            groups, rank = self.placement.groups(*axes), self._comm.Get_rank()
            color, group = next((number, group) for number, group in enumerate(groups)
                                if rank in group)
            made = self._comm.Split(color, group.index(rank))
            made.Set_name("x".join(names) or "alone")
            self._created[names] = made
        return self._created[names]

    def __str__(self) -> str:
        return str(self.placement)

    def Free(self) -> None:
        """Free the communicators; collective."""
        for made in self._created.values():
            made.Free()
        self._created.clear()
