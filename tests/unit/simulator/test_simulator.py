"""The simulator against closed forms, and its public face."""

import subprocess
import sys

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)


def log(p):
    return p.bit_length() - 1


def up(p):
    return (p - 1).bit_length()


#: (collective, algorithm, sizes, seconds for p ranks) on a machine where nothing is shared.
CLOSED = [
    ("allreduce", "ring", (2, 3, 7, 16), lambda p: 2 * (p - 1) * (A + N / p * B)
     + (p - 1) * N / p * G),
    ("allreduce", "recursive_doubling", (2, 4, 64), lambda p: log(p) * (A + N * B + N * G)),
    ("allreduce", "recursive_doubling", (3, 12, 50), lambda p: (log(p) + 2) * (A + N * B)
     + (log(p) + 1) * N * G),
    ("allreduce", "rabenseifner", (2, 8, 64), lambda p: 2 * log(p) * A
     + 2 * N * (p - 1) / p * B + N * (p - 1) / p * G),
    ("allreduce", "circulant", (2, 5, 13, 33), lambda p: 2 * up(p) * A
     + 2 * N * (p - 1) / p * B + N * (p - 1) / p * G),
    ("reduce_scatter", "ring", (2, 5, 9), lambda p: (p - 1) * (A + N / p * (B + G))),
    ("reduce_scatter", "pairwise", (2, 5, 8), lambda p: (p - 1) * (A + N / p * (B + G))),
    ("reduce_scatter", "recursive_halving", (4, 16), lambda p: log(p) * A
     + N * (p - 1) / p * (B + G)),
    ("reduce_scatter", "circulant", (3, 11), lambda p: up(p) * A + N * (p - 1) / p * (B + G)),
    ("allgather", "ring", (2, 5, 9), lambda p: (p - 1) * (A + N / p * B)),
    ("allgather", "neighbor_exchange", (4, 10), lambda p: p / 2 * A + N * (p - 1) / p * B),
    ("allgather", "recursive_doubling", (4, 32), lambda p: log(p) * A + N * (p - 1) / p * B),
    ("allgather", "bruck", (2, 7, 12), lambda p: up(p) * A + N * (p - 1) / p * B),
    ("allgather", "linear", (2, 9), lambda p: A + N * (p - 1) / p * B),
    ("alltoall", "pairwise", (2, 5, 8), lambda p: (p - 1) * (A + N / p * B)),
    ("alltoall", "bruck", (4, 32), lambda p: log(p) * (A + N / 2 * B)),
    ("alltoall", "linear", (3, 8), lambda p: A + N * (p - 1) / p * B),
    ("barrier", "dissemination", (2, 5, 100), lambda p: up(p) * A),
    ("bcast", "chain", (2, 6), lambda p: (p - 1) * (A + N * B)),
    ("bcast", "linear", (2, 6), lambda p: A + (p - 1) * N * B),
    # A rank sends to all its children at once; each of k messages then takes k times as long.
    ("bcast", "binomial", (2, 8, 64), lambda p: log(p) * A + log(p) * (log(p) + 1) / 2 * N * B),
    ("gather", "linear", (2, 6), lambda p: A + (p - 1) * N / p * B),
    ("scatter", "linear", (2, 6), lambda p: A + (p - 1) * N / p * B),
    ("scan", "linear", (2, 7), lambda p: (p - 1) * (A + N * (B + G))),
]


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "every rank"])
@pytest.mark.parametrize(("collective", "name", "sizes", "seconds"), CLOSED,
                         ids=[f"{c}-{n}" for c, n, *_ in CLOSED])
def test_closed_forms(collective, name, sizes, seconds, fold):
    for p in sizes:
        found = simulate(schedule(collective, name, p), N, FLAT, fold=fold)
        assert found.seconds == pytest.approx(seconds(p), rel=1e-9), p


def test_no_schedule():
    with pytest.raises(ArgumentError, match="schedule: .*Schedule"):
        simulate("ring", 8)


def test_the_public_name():
    """It is the function, whatever was imported before, and needs neither NumPy nor MPI."""
    # In a process of its own: pytest's collection of modules puts the package in its place.
    done = subprocess.run([sys.executable, "-c", "import sys\n"
                           "sys.modules.update(numpy=None, mpi4py=None)\n"
                           "import hpccoll.simulator.machine_model, hpccoll\n"
                           "s = hpccoll.schedule('allreduce', 'ring', 8)\n"
                           "print(hpccoll.simulate(s, 1 << 20, topology='2x4'))"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "critical path" in done.stdout
