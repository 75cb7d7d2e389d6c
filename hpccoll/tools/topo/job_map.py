"""Position of every rank: node, processors, socket, NUMA group, cache and switches."""

from __future__ import annotations

import os
from typing import NamedTuple

from mpi4py import MPI

from hpccoll import config
from hpccoll.errors import HpccollError
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import read_network
from hpccoll.machine.levels import NODE, GroupLevels, Position, layout, position
from hpccoll.machine.slurm import parse_network


class JobMap(NamedTuple):
    """A job's ranks on their machine; the same on every rank.

    Attributes:
        used: the groups that hpccoll uses, see ``HPCCOLL_LEVELS`` and ``HPCCOLL_TOPOLOGY``.
        nodes: for every rank, the smallest rank of its node.
        positions: position of every rank.
        processors: processors of every rank's affinity mask.
    """

    layout: GroupLevels
    used: str
    nodes: tuple[int, ...]
    positions: tuple[Position, ...]
    processors: tuple[tuple[int, ...], ...]

    def meet(self, a: int, b: int) -> str:
        """Return the smallest level that contains both ranks; ``network`` is above all others."""
        levels, ranks = iter(self.layout.names), self.layout.topology.plain
        smallest = "network"
        if NODE not in self.layout.names and self.nodes[a] == self.nodes[b]:
            smallest = NODE
        a, b = (self.layout.topology.positions[rank] for rank in (a, b))
        while ranks.children:
            for group, child in zip(ranks.groups(), ranks.children):
                if a in group and b in group:
                    start, ranks, smallest = group[0], child, next(levels)
                    a, b = a - start, b - start
                    break
            else:
                return smallest
        return smallest


def survey(comm: MPI.Intracomm, network: str = "") -> JobMap:
    """Gather the position of every rank; collective over ``comm``.

    Args:
        network: file about switches, in the form of Slurm's ``topology.conf``; ``""`` for
            ``HPCCOLL_NETWORK``, or Slurm's variables.
    """
    settings, problem = config.Config(), ""
    try:
        settings = config.load()
        if settings.topology is not None:
            Topology.parse(settings.topology, comm.Get_size())
    except HpccollError as error:
        problem = str(error)
    option = "--network" if network else "HPCCOLL_NETWORK"
    network = network or settings.network
    node_comm = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank())
    try:
        node = node_comm.bcast(comm.Get_rank())
    finally:
        node_comm.Free()
    text, missing = comm.bcast(read_network(network) if network and comm.Get_rank() == 0
                               else ("", ""))
    problem = problem or missing and f"{option}: {missing}"
    here, processors = None, tuple(sorted(os.sched_getaffinity(0)))
    if not problem:
        try:
            here = position(processors, network=parse_network(text) if network else None)
        except HpccollError as error:
            problem = str(error)
    answers = comm.allgather((node, here, processors, problem))
    problems = [each[3] for each in answers if each[3]]
    if problems:
        raise HpccollError(problems[0])
    nodes, positions, masks, _ = zip(*answers)
    used = settings.topology or layout(nodes, positions, settings.levels).topology
    return JobMap(layout(nodes, positions), str(used), nodes, positions, masks)
