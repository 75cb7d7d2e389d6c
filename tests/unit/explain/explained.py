"""What the tests of explanations share: algorithms, schedules that are wrong, and the replay."""

from hpccoll.algorithms import ALGORITHMS
from hpccoll.explain.replay import facts
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove

#: Collectives and algorithms that need no layout.
FLAT = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if not e.hierarchical]


def swapped(rank, size):
    """Ranks 0 and 1 exchange their contributions and forget their own: wrong on purpose."""
    return Program(((send(1 - rank, at(IN, 0)), recv(1 - rank, at(OUT, 0))),))


def lonely(rank, size):
    """Rank 0 sends what nobody receives."""
    return Program(((send(1, at(IN, 0)),), (copy(at(OUT, 0), at(IN, 0)),)) if rank == 0 else
                   ((copy(at(OUT, 0), at(IN, 0)),),))


def agree(made):
    """Compare what the replay counts with what the proof counts."""
    one, *_ = cases(made, made.collective)
    proof, found = prove(made, made.collective, one), facts(made)
    assert found.proof == proof
    assert (found.rounds, found.sent, found.messages) == (proof.rounds, proof.sent, proof.messages)
