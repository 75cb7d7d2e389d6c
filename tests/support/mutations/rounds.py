"""Changes to the rounds of a program: their order, and what stands in which."""

from __future__ import annotations

from random import Random

from hpccoll.ir.schedule import Round
from support.mutations.places import Written, draw_round, replaced


def drop_round(draw: Random, rounds: list[Round], i: int) -> None:
    del rounds[i]


def move_round(draw: Random, rounds: list[Round], i: int) -> None:
    rounds.insert(draw.randrange(len(rounds)), rounds.pop(i))


def swap_rounds_at(draw: Random, rounds: list[Round], i: int) -> None:
    rounds[i], rounds[i + 1] = rounds[i + 1], rounds[i]


def merge_rounds(draw: Random, rounds: list[Round], i: int) -> None:
    rounds[i:i + 2] = [rounds[i] + rounds[i + 1]]


def split_round(draw: Random, rounds: list[Round], i: int) -> None:
    cut = draw.randrange(len(rounds[i]) + 1)
    rounds[i:i + 1] = [rounds[i][:cut], rounds[i][cut:]]


def shuffle_round(draw: Random, rounds: list[Round], i: int) -> None:
    rounds[i] = tuple(draw.sample(rounds[i], len(rounds[i])))


def move_step(draw: Random, rounds: list[Round], i: int, to: int) -> None:
    j = draw.randrange(len(rounds[i])) if rounds[i] else 0
    step, rounds[i] = rounds[i][j:j + 1], rounds[i][:j] + rounds[i][j + 1:]
    rounds[to] = rounds[to] + step if draw.random() < .5 else step + rounds[to]


def merge_everywhere(draw: Random, programs: Written) -> Written | None:
    """Two rounds become one on every rank that has them."""
    longest = max(len(program.rounds) for program in programs)
    if longest < 2:
        return None
    i = draw.randrange(longest - 1)
    for rank, program in enumerate(programs):
        if len(program.rounds) > i + 1:
            rounds = list(program.rounds)
            merge_rounds(draw, rounds, i)
            programs = replaced(programs, rank, rounds)
    return programs


def like_another_rank(draw: Random, programs: Written) -> Written | None:
    place = draw_round(draw, programs)
    if place is None or len(programs) < 2:
        return None
    rank, i = place
    other = programs[draw.randrange(len(programs))].rounds
    rounds = list(programs[rank].rounds)
    rounds[i] = other[min(i, len(other) - 1)] if other else ()
    return replaced(programs, rank, rounds)


def swap_ranks(draw: Random, programs: Written) -> Written | None:
    one, other = draw.sample(range(len(programs)), 2)
    changed = list(programs)
    changed[one], changed[other] = programs[other], programs[one]
    return changed
