"""A mesh: one communicator for every axis of parallel training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpccoll.training.groups.placement import AXES, Placement, place


def mesh(comm: Any, *, dp: int | None = None, tp: int | None = None, pp: int | None = None,
         sp: int | None = None, ep: int | None = None, order: Sequence[str] = tuple(AXES)) -> Mesh:
    """Divide a communicator into parallel groups; collective.

    Groups lie where the communicator's layout says that ranks are near each other: tensor-parallel
    ones inside nodes, data-parallel ones across (:func:`place`).

    Args:
        comm: a :class:`hpccoll.Comm`.
        dp: data parallel; what the others leave if omitted.
        tp, pp, sp, ep: tensor parallel, pipeline stages, sequence, experts; 1 if omitted. Any one
            size may be -1: what the others leave.
        order: the axes, outermost first.

    Raises:
        ArgumentError: on all ranks alike, sizes whose product is not the number of ranks.
    """
    return Mesh(comm, place(comm.layout, order, dp=dp, tp=tp, pp=pp, sp=sp, ep=ep))


class Mesh:
    """The groups of one rank; made by :func:`mesh`.

    Attributes:
        placement: where the groups of all ranks lie.
        coordinates: the number of this rank along every axis.
        dp, tp, pp, sp, ep: communicators of the ranks that differ from this one along one axis
            only, named after it; the rank in them is its number along the axis.
    """

    dp: Any
    tp: Any
    pp: Any
    sp: Any
    ep: Any

    def __init__(self, comm: Any, placement: Placement):
        self.placement, self._comm = placement, comm
        self.coordinates = placement.coordinates(comm.Get_rank())
        self._made: dict[tuple[str, ...], Any] = {}
        for axis in placement.axes:
            setattr(self, axis, self.over(axis))

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every axis."""
        return self.placement.sizes

    def over(self, *axes: str) -> Any:
        """The communicator of the ranks that differ from this one along these axes only.

        Collective over all ranks when it is asked for first; kept until :meth:`Free`. Gradients of
        dense parameters are averaged over ``"dp", "ep", "sp"``.

        Raises:
            ArgumentError: an axis that there is not.
        """
        names = tuple(axis for axis in self.placement.axes if axis in axes)
        if names not in self._made:
            groups, rank = self.placement.groups(*axes), self._comm.Get_rank()
            color, group = next((number, group) for number, group in enumerate(groups)
                                if rank in group)
            made = self._comm.Split(color, group.index(rank))
            made.Set_name("x".join(names) or "alone")
            self._made[names] = made
        return self._made[names]

    def __str__(self) -> str:
        return str(self.placement)

    def Free(self) -> None:
        """Free the communicators; collective."""
        for made in self._made.values():
            made.Free()
        self._made.clear()
