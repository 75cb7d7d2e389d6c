"""What a simulation takes, said before and while it runs."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.cost.workload import Workload
from hpccoll.simulator import effort as effort_module
from hpccoll.simulator import simulate, symmetry
from hpccoll.simulator.conditions import SimulatedConditions
from hpccoll.simulator.effort import (
    COMPILED,
    ESTIMATE,
    MESSAGES,
    MOST,
    PROGRAMS,
    check,
    effort,
)


@pytest.mark.parametrize("collective, name, size, messages", [
    ("allreduce", "ring", 100, 100 * 4 * 99), ("allgather", "bruck", 64, 64 * 12),
    ("gather", "linear", 1000, 2 * 999)])
def test_messages_are_estimated_from_a_few_ranks(collective, name, size, messages):
    expected = effort(Workload(schedule(collective, name, size), 1000), size)
    assert expected.messages == pytest.approx(messages, rel=0.02)
    assert (expected.programs, expected.seconds > 0, expected.nbytes > 0) == (size, True, True)


@pytest.mark.slow
def test_what_would_never_end_is_refused():
    made = schedule("alltoall", "pairwise", 30_000)
    with pytest.raises(ArgumentError, match=r"30,000 .*1,799,\d+,\d+"):
        check(effort(Workload(made, 1000), 30_000), made.title)
    assert MOST < 1_799_000_000


def test_it_is_told_how_far_it_is():
    told = []
    simulate(schedule("allreduce", "recursive_doubling", 300), 1e6, "hdr", "100,120,80",
             progress=lambda *words: told.append(words))
    stages = list(dict.fromkeys(stage for stage, *_ in told))
    assert stages[:2] == [ESTIMATE, PROGRAMS] and set(stages) <= {ESTIMATE, PROGRAMS, MESSAGES}
    parts = [part for stage, part, _ in told if stage != ESTIMATE]
    assert all(0 <= part <= 1 for part in parts)


@pytest.mark.slow
def test_ranks_that_are_not_folded_are_announced_and_may_be_too_many():
    told = []
    simulate(schedule("scan", "linear", 300), 1e6, fold=False,
             progress=lambda *words: told.append(words))
    assert told[0][0] == ESTIMATE and told[0][2].startswith("300 programs and 598 messages")
    with pytest.raises(ArgumentError, match="GiB.*limit"):
        simulate(schedule("alltoall", "pairwise", 30_000), 1e6, fold=False)


@pytest.mark.slow
def test_the_event_loop_tells_what_time_it_is():
    told = []
    simulate(schedule("allreduce", "ring", 250), 1e6, "hdr", fold=False,
             progress=lambda *words: told.append(words))
    assert list(dict.fromkeys(stage for stage, *_ in told)) == [PROGRAMS, MESSAGES]
    told = [words for words in told if words[0] == MESSAGES]
    assert all(text.endswith("are simulated") for *_, text in told)
    parts = [part for _, part, _ in told]
    assert parts == sorted(parts) and 0 < parts[0] < parts[-1] <= 1


def test_what_the_python_loop_serves_is_expected_to_take_longer():
    work = Workload(schedule("alltoall", "pairwise", 64), 1000)
    usual, chosen, often = (effort(work, 64, *how).seconds for how in ((), (False,), (False, 10)))
    assert often > 5 * chosen and (chosen > 2 * usual or not COMPILED)


def test_repeats_and_routes_that_are_chosen_are_announced_for_few_ranks_too():
    told = []
    for conditions, shape in ((SimulatedConditions(noise="exponential:1us", repeat=2), None),
                              (None, "torus:4x4:routing=adaptive")):
        simulate(schedule("allreduce", "ring", 16), 1e5, "hdr", shape=shape,
                 conditions=conditions, progress=lambda *words: told.append(words))
        assert told[0][0] == ESTIMATE
        told.clear()


def test_one_rank_with_work_and_no_messages_is_told_of():
    """Hundreds of moments and not one message: their part of none is no division by zero."""
    made = simulate(schedule("reduce_scatter", "ring", 1), "1M", "hdr", segment_bytes=2048,
                    conditions=SimulatedConditions(late="one:0:5us"))
    assert made.messages == 0 and made.seconds > 0


def test_a_pause_while_one_program_is_made_is_not_multiplied(monkeypatch):
    """A pause of a fifth of a second counted for all 100,000 programs: 20,000 s."""
    clock = iter([0, 0.2, *[1, 1.001] * 100])
    monkeypatch.setattr(effort_module, "perf_counter", lambda: next(clock))
    work = Workload(schedule("bcast", "binomial", 64), 1000)
    assert effort(work, 100_000).seconds < 110


def test_comparing_long_programs_is_announced_and_shows_how_far_it_is(monkeypatch):
    monkeypatch.setattr(symmetry, "WORTH", 0.0)
    told = []
    simulate(schedule("alltoall", "pairwise", 32), 1e6, "hdr", "4x8",
             progress=lambda *words: told.append(words))
    assert told[0][0] == ESTIMATE and "programs of about 20 ranks" in told[0][2]
    parts = [part for stage, part, _ in told if stage == PROGRAMS]
    assert parts == sorted(parts) and 0 < parts[0] < parts[-1] < 1
