"""Synthesis: schedules for small worlds, found by a solver or shown not to exist.

A world is a graph of links; in a *round* messages travel at once, and each link, port or uplink
carries so many chunks for every unit of the *budget* that the round has. Asked is for a spread:
chunks that start at their owners are everywhere after so many rounds and units. A Boolean says that
a chunk goes from one rank to another in a round; every rank gets every chunk once, from a rank that
has it. A reduce-scatter is a spread backwards, an allreduce both.
Source: Cai et al., "Synthesizing Optimal Collective Algorithms", PPoPP 2021 (SCCL; its steps are
rounds here, its rounds the budget); the encoding of times by Booleans is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.passes import runs
from hpccoll.ir.schedule import LEFT, Program, Round, Schedule, at, copy, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator.machine_model import Machine

#: Collectives that are found.
FOUND = ("allgather", "allreduce", "bcast", "reduce_scatter")
#: NVLinks of a DGX-1: pairs, and how many links each has (SCCL, figure 1).
DGX1 = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
        (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}


class SmallWorld(NamedTuple):
    """Links between ranks, and what they carry.

    Attributes:
        size: ranks.
        links: ordered pairs of ranks that messages may travel between.
        limits: links that share something, and the chunks that it carries in a unit of time.
    """

    size: int
    links: Sequence[tuple[int, int]]
    limits: Sequence[tuple[Sequence[tuple[int, int]], int]]


class ChunkMove(NamedTuple):
    """A chunk goes from one rank to another in a round, counted from 0."""

    chunk: int
    frm: int
    to: int
    round: int


def world(text: str, machine: Machine | None = None, ports: int = 1) -> SmallWorld:
    """Read a world: ``ring:8``, ``dgx1``, or a layout such as ``2x4``.

    In a layout every rank reaches every other one, sends and receives ``ports`` chunks in a unit,
    and a group's link carries what the machine says, in multiples of a rank's rate.

    Raises:
        ArgumentError: malformed.
    """
    if text == "dgx1":
        both = {**DGX1, **{(b, a): links for (a, b), links in DGX1.items()}}
        return SmallWorld(8, list(both), [([pair], links) for pair, links in both.items()])
    if text.startswith("ring:"):
        if not text[5:].isdecimal() or int(text[5:]) < 2:
            raise ArgumentError("--topology", f"cannot read {text!r}", "write ring:8")
        size = int(text[5:])
        pairs = list(dict.fromkeys(pair for rank in range(size) for pair in (
            (rank, (rank + 1) % size), (rank, (rank - 1) % size))))
        return SmallWorld(size, pairs, [([pair], 1) for pair in pairs])
    layout = Topology.parse(text)
    size = layout.size
    pairs = [(a, b) for a, b in product(range(size), repeat=2) if a != b]
    limits: list[tuple[Sequence[tuple[int, int]], int]] = []
    for rank in range(size):
        limits += [([p for p in pairs if p[0] == rank], ports),
                   ([p for p in pairs if p[1] == rank], ports)]
    if machine is not None and layout.depth > 1:
        level = machine.level(0)
        wide = max(1, int(level.link * level.beta + 1e-9)) if level.link < float("inf") else size
        for group in map(set, layout.groups()):
            limits += [([p for p in pairs if p[0] in group and p[1] not in group], wide),
                       ([p for p in pairs if p[1] in group and p[0] not in group], wide)]
    return SmallWorld(size, pairs, limits)


def least(place: SmallWorld, owners: Sequence[int]) -> int:
    """Units below which too few chunks fit into some rank or group; there may be no way above."""
    bounds = [0]
    alone: dict[tuple[int, int], int] = {}
    for links, capacity in place.limits:
        if len(links) == 1:
            alone[links[0]] = min(capacity, alone.get(links[0], capacity))
        inside = {to for _, to in links}
        entries = {(a, b) for a, b in place.links if b in inside and a not in inside}
        if entries and entries <= set(links):
            bounds.append(-(-sum(owner not in inside for owner in owners) // capacity))
    for rank in range(place.size):
        entries = {link for link in place.links if link[1] == rank}
        if entries and entries <= set(alone):
            bounds.append(-(-sum(owner != rank for owner in owners)
                            // sum(map(alone.__getitem__, entries))))
    return max(bounds)


def spread(place: SmallWorld, owners: Sequence[int], rounds: int, budget: int,
           seconds: float = 60.0, stopped: Callable[[], bool] = lambda: False
           ) -> list[ChunkMove] | None:
    """Find how chunks get from their owners to everybody; ``None`` if there is no way.

    Args:
        place: the links.
        owners: the rank that has each chunk at first.
        rounds, budget: rounds, and units of time that they have together.
        seconds: after which it is given up.
        stopped: tells whether to end.

    Raises:
        HpccollError: z3 is not installed, or has not found out in time.
        KeyboardInterrupt: stopped.
    """
    def going(items: Iterable[Any]) -> Iterator[Any]:
        for each in items:
            if stopped():
                raise KeyboardInterrupt
            yield each

    try:
        import z3
    except ImportError as error:
        raise HpccollError("synthesis needs z3; install it with: pip install "
                           "'hpccoll[synthesize]'") from error
    if budget < least(place, owners):
        return None  # a solver takes long to count
    solver = z3.Solver()
    solver.set("timeout", int(1000 * seconds))
    goes: dict[ChunkMove, Any] = {
        ChunkMove(chunk, a, b, r): z3.Bool(f"x{chunk}_{a}_{b}_{r}")
        for chunk, owner in going(enumerate(owners)) for a, b in place.links if b != owner
        for r in range(rounds)}
    arrivals: dict[tuple[int, int], list[ChunkMove]] = {}
    for move in goes:
        arrivals.setdefault((move.chunk, move.to), []).append(move)
    for moves in going(arrivals.values()):
        solver.add(z3.PbEq([(goes[m], 1) for m in moves], 1))
    for move, variable in going(goes.items()):
        if move.frm != owners[move.chunk]:
            solver.add(z3.Implies(variable, z3.Or([
                goes[m] for m in arrivals[move.chunk, move.frm] if m.round < move.round])))
    # Units of a round: one of the numbers that leave one for each of the others.
    units = [[z3.Bool(f"q{r}_{n}") for n in range(1, budget - rounds + 2)] for r in range(rounds)]
    for choices in units:
        solver.add(z3.PbEq([(choice, 1) for choice in choices], 1))
    solver.add(z3.PbLe([(choice, n) for choices in units
                        for n, choice in enumerate(choices, 1)], budget))
    by_link: dict[tuple[int, int, int], list[Any]] = {}
    for move, variable in goes.items():
        by_link.setdefault((move.frm, move.to, move.round), []).append(variable)
    for links, capacity in going(place.limits):
        for r in range(rounds):
            loads = [(v, 1) for a, b in links for v in by_link.get((a, b, r), ())]
            for n, choice in enumerate(units[r], 1):
                if len(loads) > capacity * n:
                    solver.add(z3.Implies(choice, z3.PbLe(loads, capacity * n)))
    found = solver.check()
    # The solver takes Ctrl-C for itself.
    if found == z3.unknown and "interrupted" in solver.reason_unknown():
        raise KeyboardInterrupt
    if found == z3.unknown:
        raise HpccollError(f"not found out in {seconds:g} s whether there is a schedule; give it "
                           "more --seconds, or more --rounds or --budget, which is easier")
    if found == z3.unsat:
        return None
    model = solver.model()
    return [move for move, variable in goes.items() if z3.is_true(model[variable])]


def synthesize(collective: str, place: SmallWorld, rounds: int, budget: int, chunks: int = 1,
               root: int = 0, seconds: float = 60.0,
               stopped: Callable[[], bool] = lambda: False) -> Schedule | None:
    """Find a schedule; ``None`` if there is none.

    Args:
        collective: one of :data:`FOUND`.
        place: the links.
        rounds, budget: of a spread; an allreduce has two.
        chunks: parts of what a rank owns, or of the root's vector.
        root: of a bcast.
        seconds: after which it is given up.
        stopped: tells whether to end.

    Raises:
        ArgumentError: what makes no sense.
        HpccollError: not found out.
        KeyboardInterrupt: stopped.
    """
    if collective not in FOUND:
        raise ArgumentError.unknown("collective", collective, FOUND,
                                    f"{collective!r} is not synthesized")
    if chunks > 1 and collective in ("allgather", "reduce_scatter"):
        raise ArgumentError("--chunks", f"a block of {collective} is not cut",
                            "only vectors are: allreduce and bcast")
    if budget < rounds:
        raise ArgumentError("--budget", f"{budget} units are too few for {rounds} rounds",
                            "every round takes one")
    if not 0 <= root < place.size:
        raise ArgumentError("--root", f"{root} is not a rank of 0..{place.size - 1}")
    size = place.size
    owners = [root] * chunks if collective == "bcast" else [n // chunks
                                                          for n in range(size * chunks)]
    moves = spread(place, owners, rounds, budget, seconds, stopped)
    if moves is None:
        return None
    build = {"bcast": _forward, "allgather": _forward, "allreduce": _both,
             "reduce_scatter": _backward}[collective]
    programs = [build(rank, size, rounds, moves, len(owners)) for rank in range(size)]
    if collective == "allgather":
        programs = [p._replace(rounds=((copy(at(OUT, rank), at(IN, 0)),), *p.rounds))
                    for rank, p in enumerate(programs)]
    return Schedule(COLLECTIVES[collective], "synthesized", size, programs.__getitem__, root,
                    len(owners) if COLLECTIVES[collective].payload == "vector" else 1)


def _forward(rank: int, size: int, rounds: int, moves: Sequence[ChunkMove], chunks: int) -> Program:
    """Spread chunks in the output."""
    return Program(tuple(_rounds(rank, range(rounds), moves, OUT, False)))


def _both(rank: int, size: int, rounds: int, moves: Sequence[ChunkMove], chunks: int) -> Program:
    """Collect contributions backwards, then spread the sums."""
    return Program(((copy(at(OUT, 0, chunks), at(IN, 0, chunks)),),
                    *_rounds(rank, reversed(range(rounds)), moves, OUT, True),
                    *_rounds(rank, range(rounds), moves, OUT, False)))


def _backward(rank: int, size: int, rounds: int, moves: Sequence[ChunkMove],
              chunks: int) -> Program:
    """Collect contributions backwards, on a copy of the input."""
    return Program(((copy(at(TMP, 0, size), at(IN, 0, size)),),
                    *_rounds(rank, reversed(range(rounds)), moves, TMP, True),
                    (copy(at(OUT, 0), at(TMP, rank)),)), range(size))


def _rounds(rank: int, order: Any, moves: Sequence[ChunkMove], buffer: str,
            backwards: bool) -> Iterator[Round]:
    """A rank's messages, round by round; all chunks between two ranks in one."""
    for number in order:
        sent: dict[int, list[int]] = {}
        received: dict[int, list[int]] = {}
        for chunk, frm, to, when in moves:
            if when == number:
                frm, to = (to, frm) if backwards else (frm, to)
                if frm == rank:
                    sent.setdefault(to, []).append(chunk)
                elif to == rank:
                    received.setdefault(frm, []).append(chunk)
        steps = [send(peer, *runs(buffer, sorted(held))) for peer, held in sorted(sent.items())]
        steps += [recv(peer, *runs(buffer, sorted(held)), reduce=LEFT if backwards else "")
                  for peer, held in sorted(received.items())]
        if steps:
            yield tuple(steps)
