"""What two papers claim of their algorithms, and what is so of those in examples/.

    python docs/papers.py [PICTURE]

Links are counted one by one: of every round, what the busiest link of a ring or torus carries. A
round takes ``ALPHA`` and that. docs/internal/papers.md has the results.
"""
import sys
from collections import Counter
from math import log
from pathlib import Path

from hpccoll import Algorithm, schedule
from hpccoll.algorithms.outside import load
from hpccoll.explain.replay import timeline
from hpccoll.lang import IN, LEFT, OUT, Program, at, copy, recv, send
from hpccoll.units import size_text

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
#: Seconds of a step, and bytes per second of each direction of a link: 800 Gb/s.
ALPHA, RATE = 1.5e-6, 1e11
SIZES = [2 ** k for k in range(5, 28)]
#: For rings of powers of three, those of powers of two for algorithms that need them.
RINGS = {9: 8, 27: 32, 81: 64}


def bruck(rank, size):
    """What the paper compares with: the same steps, but one way round, to the next two."""
    rounds = [(copy(at(OUT, 0), at(IN, 0)),)]
    for k in range(round(log(size, 3))):
        near, far = 3 ** k, 2 * 3 ** k
        rounds.append((send((rank + near) % size, at(OUT, 0)),
                       send((rank + far) % size, at(OUT, 0)),
                       recv((rank - near) % size, at(OUT, 0), reduce=LEFT),
                       recv((rank - far) % size, at(OUT, 0), reduce=LEFT)))
    return Program(tuple(rounds))


def swing(rank, size):
    """The latency variant of Swing (De Sensi et al., NSDI 2024), which takes log2(n) steps."""
    rounds = [(copy(at(OUT, 0), at(IN, 0)),)]
    for k in range(size.bit_length() - 1):
        far = (1 - (-2) ** (k + 1)) // 3
        peer = (rank + far if rank % 2 == 0 else rank - far) % size
        rounds.append((send(peer, at(OUT, 0)), recv(peer, at(OUT, 0), reduce=LEFT)))
    return Program(tuple(rounds))


BRUCK = Algorithm(bruck, "allreduce", exact_only=True)
SWING = Algorithm(swing, "allreduce", exact_only=True)


def loads(made, way="shorter"):
    """Of every round, the vectors that the busiest link carries.

    Messages take the shorter way round, or all go ``right``; or half of the vector does so and the
    other half is its mirror image (``mirrored``), as in Swing.
    """
    carried = {}
    for message in timeline(made).messages:
        ahead = (message.receiver - message.sender) % made.size
        right = way == "right" or 2 * ahead <= made.size
        for hop in range(ahead if right else made.size - ahead):
            turn = 1 if right else -1
            place = (message.sender + turn * hop) % made.size
            links = [(turn, place)] + [(-turn, -place % made.size)] * (way == "mirrored")
            for link in links:
                key = message.round, *link
                carried[key] = carried.get(key, 0) + (
                    len(message.values) / made.nblocks / len(links))
    busiest = {}
    for (number, _, _), vectors in carried.items():
        busiest[number] = max(busiest.get(number, 0), vectors)
    return [busiest[number] for number in sorted(busiest)]


def rivals(size):
    """The loads of the rounds of all algorithms, by name."""
    latency, bandwidth = (load(f"{EXAMPLES}/trivance.py:{name}")
                          for name in ("LATENCY", "BANDWIDTH"))
    both_ways = f"{EXAMPLES}/torus.py:TORUS"

    def on(ranks, entry, way="shorter", **params):
        return loads(schedule("allreduce", entry, ranks, **params), way)
    two = RINGS[size]
    return {"Trivance, latency": on(size, latency), "Trivance, bandwidth": on(size, bandwidth),
            "Bruck": on(size, BRUCK), "bucket": on(size, both_ways, x=size, y=1, z=1),
            "Swing, latency": on(two, SWING, "mirrored"),
            "Swing, bandwidth": on(two, "swing", "mirrored")}


def seconds(rounds, nbytes):
    """Time of a schedule on the ring."""
    return sum(ALPHA + load * nbytes / RATE for load in rounds)


def gains(found):
    """By size, how much faster the better Trivance is than the best of the others."""
    for nbytes in SIZES:
        times = {name: seconds(rounds, nbytes) for name, rounds in found.items()}
        ours = min(time for name, time in times.items() if name.startswith("Trivance"))
        yield nbytes, min(time for name, time in times.items()
                          if not name.startswith("Trivance")) / ours - 1


def torus():
    """Of tori: time for bytes over its lower bound, one dimension at a time and on all links.

    Every rank has six links, and has to send 2 (1 - 1/p) vectors.
    """
    for x, y, z in ((3, 3, 3), (4, 4, 4), (3, 3, 4), (3, 4, 5), (4, 4, 5)):
        size, shape = x * y * z, {"x": x, "y": y, "z": z}
        yield f"{x}x{y}x{z}", [
            neighbours(schedule("allreduce", str(EXAMPLES / entry), size, **shape))
            * 6 / (2 * (1 - 1 / size)) for entry in ("torus.py:TORUS", "torus_lanes.py:ALL_LINKS")]


def neighbours(made):
    """The vectors that the busiest link carries, round by round, where all go to neighbours."""
    carried = Counter()
    for message in timeline(made).messages:
        carried[message.round, message.sender, message.receiver] += len(message.values)
    most = Counter()
    for (number, _, _), blocks in carried.items():
        most[number] = max(most[number], blocks)
    return sum(most.values()) / made.nblocks


def main(path=None):
    """Print what is found, and draw Trivance's part where a path is given."""
    print("torus   over the lower bound: one dimension at a time   all links")
    for shape, (one, every) in torus():
        print(f"{shape}   {one:43.3f}   {every:9.3f}")
    print()
    found = {size: rivals(size) for size in RINGS}
    print("ranks  algorithm              steps  vectors over the busiest link")
    for size, each in found.items():
        for name, rounds in each.items():
            print(f"{size:5}  {name:21}  {len(rounds):5}  {sum(rounds):.4g}")
        one_way = sum(loads(schedule("allreduce", BRUCK, size), "right"))
        ours = sum(each["Trivance, latency"])
        print(f"       Bruck carries {one_way / ours:.3g} times as much one way round (the paper: "
              f"3), {sum(each['Bruck']) / ours:.3g} times the shorter way")
        print("       against the best other:", ", ".join(
            f"{size_text(nbytes)} {gain:+.0%}" for nbytes, gain in list(gains(each))[3::2]))
    if path:
        from matplotlib.figure import Figure
        figure = Figure((11, 4), layout="constrained")
        for axes, (size, each) in zip(figure.subplots(1, 3), found.items()):
            best = [min(seconds(r, n) for name, r in each.items() if name[0] != "T") for n in SIZES]
            for name, rounds in each.items():
                axes.plot(SIZES, [seconds(rounds, n) / b for n, b in zip(SIZES, best)], label=name,
                          lw=2.2 if name[0] == "T" else 1.2)
            axes.fill_between([SIZES[0], 2 ** 23], 1 / 1.3, 1 / 1.05, color="0.88", zorder=0,
                              label="the paper: 5 to 30 % faster, to 8 MiB")
            axes.set(xscale="log", ylim=(0.5, 2.5), xlabel="bytes", title=f"ring of {size}")
            axes.set_xticks([2 ** k for k in (6, 13, 20, 27)], ["64", "8 K", "1 M", "128 M"])
        figure.axes[0].set_ylabel("time / best that is not Trivance")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, ncols=4,
                      loc="outside lower center")
        figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
