"""A solver finds a schedule for a small world of links, or shows that there is none.

    pip install z3-solver
    mpiexec -n 4 python examples/synthesize.py
    python examples/synthesize.py allreduce 2x4 --machine hdr --rounds 3 -o two-nodes.json
    python examples/synthesize.py allreduce dgx1 --rounds 2 --budget 3 --chunks 2

The question is a spread: chunks start at their owners and are everywhere after R rounds. In a
round messages travel at once. All rounds share a budget of U units; in a unit a link carries its
number of chunks. A reduce-scatter is a spread backwards, an allreduce both. Source: Cai et al.,
"Synthesizing Optimal Collective Algorithms", PPoPP 2021 (SCCL), here with Booleans only.
"""
import argparse
import json
import sys
from itertools import product

import z3

from hpccoll import Topology, simulate, verify
from hpccoll.explain import as_json
from hpccoll.ir.passes import runs
from hpccoll.lang import COLLECTIVES, IN, LEFT, OUT, TMP, Program, Schedule, at, copy, recv, send
from hpccoll.simulator.machine_model import find

FOUND = "allgather", "allreduce", "bcast", "reduce_scatter"
#: NVLinks of a DGX-1: their number, and the pairs of GPUs that have it (SCCL, figure 1).
DGX1 = {1: "01 02 13 26 37 45 46 57", 2: "03 04 12 15 23 47 56 67"}


def world(text, machine=None):
    """Read ring:6, dgx1 or 2x4: the size, and links that share a number of chunks in a unit."""
    if text == "dgx1":
        return 8, [([link], number) for number, pairs in DGX1.items() for a, b in pairs.split()
                   for link in ((int(a), int(b)), (int(b), int(a)))]
    if text.startswith("ring:"):
        if not text[5:].isdecimal():
            raise ValueError(f"cannot read {text!r}; write ring:8")
        size = int(text[5:])
        return size, [([link], 1) for link in dict.fromkeys(
            (a, (a + way) % size) for a in range(size) for way in (1, -1)) if size > 1]
    layout = Topology.parse(text)
    links = [(a, b) for a, b in product(range(layout.size), repeat=2) if a != b]
    limits = [([link for link in links if link[end] == rank], 1)
              for rank in range(layout.size) for end in (0, 1)]
    if machine is not None and layout.depth > 1:    # a group's link, in multiples of a rank's rate
        level = machine.level(0)
        wide = max(1, int(min(level.link * level.beta, layout.size) + 1e-9))
        for group in map(set, layout.groups()):
            limits += [([(a, b) for a, b in links if a in group and b not in group], wide),
                       ([(a, b) for a, b in links if b in group and a not in group], wide)]
    return layout.size, limits


def least(limits, owners):
    """Units below which some ranks cannot get all chunks; a solver takes long to count."""
    links, bounds = {link for some, _ in limits for link in some}, [0]
    for inside in {frozenset(to for _, to in some) for some, _ in limits}:
        entries = {(a, b) for a, b in links if b in inside and a not in inside}
        widths = [wide for some, wide in limits if entries and entries <= set(some)]
        alone = [wide for some, wide in limits if len(some) == 1 and some[0] in entries]
        if alone and len(alone) == len(entries):
            widths.append(sum(alone))
        bounds += [-(-sum(owner not in inside for owner in owners) // wide) for wide in widths]
    return max(bounds)


def spread(limits, owners, rounds, budget):
    """Find moves (chunk, from, to, round) that bring every chunk to every rank, or None."""
    if budget < least(limits, owners):
        return None
    solver, arrivals = z3.Solver(), {}
    links = dict.fromkeys(link for some, _ in limits for link in some)
    goes = {(chunk, a, b, r): z3.Bool(f"x{chunk}_{a}_{b}_{r}") for chunk, owner in enumerate(owners)
            for a, b in links if b != owner for r in range(rounds)}
    for move in goes:
        arrivals.setdefault((move[0], move[2]), []).append(move)
    for moves in arrivals.values():
        solver.add(z3.PbEq([(goes[move], 1) for move in moves], 1))
    for (chunk, a, _, r), moved in goes.items():
        if a != owners[chunk]:                      # it has come before it goes on
            solver.add(z3.Implies(moved, z3.Or([
                goes[move] for move in arrivals[chunk, a] if move[3] < r])))
    # Units of a round: one of the numbers that leave one for each of the others.
    units = [[z3.Bool(f"q{r}_{n}") for n in range(1, budget - rounds + 2)] for r in range(rounds)]
    for choices in units:
        solver.add(z3.PbEq([(choice, 1) for choice in choices], 1))
    solver.add(z3.PbLe([(choice, n) for choices in units
                        for n, choice in enumerate(choices, 1)], budget))
    for (some, wide), r in product(limits, range(rounds)):
        loads = [(moved, 1) for (_, a, b, when), moved in goes.items()
                 if when == r and (a, b) in some]
        for n, choice in enumerate(units[r], 1):
            if len(loads) > wide * n:
                solver.add(z3.Implies(choice, z3.PbLe(loads, wide * n)))
    found = solver.check()
    if found == z3.unknown:                         # the solver takes Ctrl-C for itself
        raise KeyboardInterrupt(solver.reason_unknown())
    model = solver.model() if found == z3.sat else None
    return None if model is None else [m for m, moved in goes.items() if z3.is_true(model[moved])]


def synthesize(collective, place, rounds, budget, chunks=1, root=0):
    """Make the schedule of a spread; None if there is none."""
    size, limits = place
    if budget < rounds:
        raise ValueError(f"{budget} units are too few for {rounds} rounds; every round takes one")
    if chunks > 1 and collective in ("allgather", "reduce_scatter"):
        raise ValueError(f"a block of {collective} is not cut; allreduce and bcast have chunks")
    if not 0 <= root < size:
        raise ValueError(f"root {root} is not a rank of 0..{size - 1}")
    owners = ([root] * chunks if collective == "bcast"
              else [n // chunks for n in range(size * chunks)])
    moves = spread(limits, owners, rounds, budget)

    def messages(rank, buffer, backwards):          # all chunks between two ranks in one message
        for r in reversed(range(rounds)) if backwards else range(rounds):
            sent, received = {}, {}
            for chunk, a, b, when in moves:
                frm, to = (b, a) if backwards else (a, b)
                if when == r and rank == frm:
                    sent.setdefault(to, []).append(chunk)
                elif when == r and rank == to:
                    received.setdefault(frm, []).append(chunk)
            steps = [send(to, *runs(buffer, sorted(sent[to]))) for to in sorted(sent)]
            steps += [recv(frm, *runs(buffer, sorted(received[frm])),
                           reduce=LEFT if backwards else "") for frm in sorted(received)]
            if steps:
                yield tuple(steps)

    def program(rank):
        if collective == "bcast":
            return Program((*messages(rank, OUT, False),))
        if collective == "allgather":
            return Program(((copy(at(OUT, rank), at(IN, 0)),), *messages(rank, OUT, False)))
        if collective == "allreduce":
            return Program(((copy(at(OUT, 0, len(owners)), at(IN, 0, len(owners))),),
                            *messages(rank, OUT, True), *messages(rank, OUT, False)))
        return Program(((copy(at(TMP, 0, size), at(IN, 0, size)),), *messages(rank, TMP, True),
                        (copy(at(OUT, 0), at(TMP, rank)),)), range(size))

    blocks = len(owners) if COLLECTIVES[collective].payload == "vector" else 1
    return None if moves is None else Schedule(
        COLLECTIVES[collective], "synthesized", size, list(map(program, range(size))).__getitem__,
        root, blocks)


def main(words, ranks=1):
    """Search, and show what is found; return the exit status: 1 if there is no such schedule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("collective", nargs="?", choices=FOUND, default="allgather")
    parser.add_argument("world", nargs="?", default=f"ring:{ranks}", help="ring:6, dgx1 or 2x4")
    parser.add_argument("--machine", help="gives a layout the rates of its groups, and the time")
    parser.add_argument("--rounds", type=int, help="of one spread; as few as can be, if omitted")
    parser.add_argument("--budget", type=int, help="units; as few as can be, if omitted")
    parser.add_argument("--chunks", type=int, default=1, help="parts of what a rank owns")
    parser.add_argument("-o", metavar="FILE.json", help="verify, explain, simulate, bench take it")
    args = parser.parse_args(words)
    machine = None if args.machine is None else find(args.machine)
    place = world(args.world, machine)
    size, enough = place[0], place[0] * args.chunks
    rounds = args.rounds or next(r for r in range(1, enough + 1) if synthesize(
        args.collective, place, r, max(enough, r), args.chunks))
    for units in [args.budget] if args.budget else range(rounds, rounds + enough):
        made = synthesize(args.collective, place, rounds, units, args.chunks)
        print(f"{args.collective} on {args.world}, {size} rank{'s' * (size > 1)}, rounds "
              f"{rounds}, units {units}:", "there is none" if made is None else
              f"found and proved, at most {verify(made).sent} blocks from one rank", flush=True)
        if made is not None:
            break
    if made is not None and machine is not None:
        layout = args.world if args.world[0].isdigit() else None
        print(f"1 MiB on {machine.name}: {simulate(made, '1M', machine, layout).seconds:.3g} s")
    if made is not None and args.o:
        with open(args.o, "w", encoding="utf-8") as file:
            json.dump(as_json(made), file, indent=1)
    return made is None


if __name__ == "__main__":
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0 and main(sys.argv[1:], MPI.COMM_WORLD.size):
        sys.exit(1)
