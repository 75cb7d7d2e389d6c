"""Changes to what the network does with messages of several ranks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from hpccoll.ir.in_network import InNetwork, Peer, in_network
from hpccoll.ir.schedule import SEND, Step
from support.mutations.places import Written, replaced


def other_network(draw: Random, step: Step, programs: Written, rank: int) -> list[Step]:
    """One end is of another operation, or a message to a rank."""
    network, size = cast(InNetwork, step.peer), len(programs)
    peer: Peer = draw.choice((
        network.backwards, fewer_sources(draw, network, size), fewer_sinks(draw, network, size),
        more_sinks(draw, network, size), draw.randrange(size)))
    return [step._replace(peer=peer)]


def everywhere(change: Callable[[Random, InNetwork, int], InNetwork]
               ) -> Callable[[Random, Written], Written | None]:
    """A kind that makes one operation another one at all its ends; who is not in it is left out."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        found = _networks(programs)
        if not found:
            return None
        old = draw.choice(found)
        new = change(draw, old, len(programs))
        for rank, program in enumerate(programs):
            programs = replaced(programs, rank, [
                tuple(step._replace(peer=new) if step.peer == old else step for step in steps
                      if step.peer != old or new.has(rank, step.kind == SEND))
                for steps in program.rounds])
        return programs
    return mutate


def fewer_sources(draw: Random, network: InNetwork, size: int) -> InNetwork:
    ranks = list(network.senders)
    if not ranks:  # another change has taken the last one
        return network
    gone = draw.choice(ranks)
    return in_network((rank for rank in ranks if rank != gone), network.receivers)


def fewer_sinks(draw: Random, network: InNetwork, size: int) -> InNetwork:
    return fewer_sources(draw, network.backwards, size).backwards


def more_sinks(draw: Random, network: InNetwork, size: int) -> InNetwork:
    return in_network(network.senders, {*network.receivers, draw.randrange(size)})


def spelt_out(draw: Random, programs: Written) -> Written | None:
    """A multicast becomes a message to each of its ranks."""
    found = [network for network in _networks(programs) if len(list(network.senders)) == 1]
    if not found:
        return None
    old = draw.choice(found)
    root, = old.senders
    for rank, program in enumerate(programs):
        programs = replaced(programs, rank, [
            tuple(new for step in steps for new in (
                [step] if step.peer != old else
                [step._replace(peer=root)] if step.kind != SEND else
                [step._replace(peer=sink) for sink in old.receivers]))
            for steps in program.rounds])
    return programs


def _networks(programs: Written) -> list[InNetwork]:
    return list(dict.fromkeys(step.peer for program in programs for steps in program.rounds
                              for step in steps if isinstance(step.peer, InNetwork)))
