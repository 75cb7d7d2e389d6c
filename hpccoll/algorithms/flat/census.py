"""Census: a window of the e ranks just below every rank doubles, in the fewest rounds.

A rank keeps E, the sum over ranks r-e .. r-1, and its own contribution x. A move with bit 0
sends E to rank r+e, a move with bit 1 sends E op x to rank r+e+1; the arriving sum is put below
E, and e becomes 2e + bit. For an allreduce ranks wrap round and the bits are those of p-1, so
that E ends as all the others, each once. Ranks start at different places of the circle and
associate differently: floating-point results may differ between ranks. For a prefix sum
nothing wraps, so order is kept, and e may end larger than p-1: as few moves as possible have
bit 1, because those cost an addition more. An inclusive prefix keeps E op x all along instead.
Source: Bar-Noy, Kipnis and Schieber (census functions); Bruck and Ho; Traeff, arXiv 2507.04785.
Rounds: q = ceil(log2 p), the fewest possible, for any p. Sent: qn.
"""

from __future__ import annotations

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Step, at, copy, recv, reduce, send


def allreduce(rank: int, size: int) -> Program:
    """Grow the window round the circle of ranks until it holds all others."""
    own, window, both = at(TMP, 0), at(OUT, 0), at(TMP, 1)
    rounds: list[list[Step]] = [[copy(own, at(IN, 0)), copy(window, at(IN, 0))]]
    covered = 0
    for bit in circle(size):
        distance, given = covered + bit, window
        if not covered:
            given = own
        elif bit and covered + distance == size - 1:
            # The last move: no rank needs the window without the own contribution any more.
            rounds[-1].append(reduce(window, own, RIGHT))
        elif bit:
            given = both
            rounds[-1] += [copy(both, own), reduce(both, window, LEFT)]
        rounds.append([send((rank + distance) % size, given),
                       recv((rank - distance) % size, window, reduce=LEFT if covered else "")])
        covered += distance
    # Unless the last move had bit 1, or there was none, the own contribution is still apart.
    if size == 2 or size > 1 and size % 2:
        rounds[-1].append(reduce(window, own, RIGHT))
    return Program(tuple(map(tuple, rounds)), (0, 0))


def scan(rank: int, size: int) -> Program:
    """Double the window that ends with this rank."""
    window = at(OUT, 0)
    rounds: list[tuple[Step, ...]] = [(copy(window, at(IN, 0)),)]
    for distance in (1 << i for i in range((size - 1).bit_length())):
        up = (send(rank + distance, window),) if rank + distance < size else ()
        down = (recv(rank - distance, window, reduce=LEFT),) if rank >= distance else ()
        rounds.append((*up, *down))
    return Program(tuple(rounds))


def exscan(rank: int, size: int) -> Program:
    """Grow the window that ends just below this rank, down to rank 0."""
    own, window, both = at(TMP, 0), at(OUT, 0), at(TMP, 1)
    rounds: list[list[Step]] = [[copy(own, at(IN, 0))]]
    covered = 0
    for bit in line(size):
        distance, given = covered + bit, window
        # Rank 0 has an empty window: nothing to send without its own, nothing to add to it.
        sends = rank + distance < size and (bit or rank)
        if bit and sends:
            given = both if covered and rank else own
            if given is both:
                rounds[-1] += [copy(both, own), reduce(both, window, LEFT)]
        steps = [send(rank + distance, given)] if sends else []
        if rank > distance or bit and rank == distance:
            steps.append(recv(rank - distance, window, reduce=LEFT if covered else ""))
        rounds.append(steps)
        covered += distance
    return Program(tuple(map(tuple, rounds)), (0, 0))


def circle(size: int) -> list[int]:
    """Return the moves after which the window has exactly p-1 ranks: the bits of p-1.

    >>> circle(13)
    [1, 1, 0, 0]
    """
    return [int(bit) for bit in f"{size - 1:b}"] if size > 1 else []


def line(size: int) -> list[int]:
    """Return the moves, with the fewest of bit 1, after which the window has at least p-1 ranks.

    After i moves of bit 1 and q-i of bit 0 the window has (2^i - 1) 2^(q-i) ranks.

    >>> line(13)
    [1, 1, 0, 0]
    """
    q = (size - 1).bit_length()
    ones = next(i for i in range(q + 1) if ((1 << i) - 1) << (q - i) >= size - 1)
    return [1] * ones + [0] * (q - ones)
