"""Schedules as text and as values."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT, TMP, Collective
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Schedule, at, copy, recv, reduce, send


@pytest.mark.parametrize("step, text", [
    (send(3, at(OUT, 2)), "send 3 out[2]"),
    (send(3, at(OUT, 2, 5), at(TMP, 0)), "send 3 out[2:5] tmp[0]"),
    (send(3), "send 3"),
    (recv(1, at(OUT, 0)), "recv 1 out[0]"),
    (recv(1), "recv 1"),
    (recv(1, at(OUT, 0), reduce=LEFT), "recv 1 out[0] (arriving op mine)"),
    (recv(1, at(OUT, 0), reduce=RIGHT), "recv 1 out[0] (mine op arriving)"),
    (copy(at(OUT, 0, 2), at(IN, 0, 2)), "copy out[0:2] <- in[0:2]"),
    (reduce(at(OUT, 0), at(TMP, 1)), "reduce out[0] <- tmp[1] (arriving op mine)"),
    (reduce(at(OUT, 0), at(TMP, 1), RIGHT), "reduce out[0] <- tmp[1] (mine op arriving)"),
])
def test_steps_read_like_sentences(step, text):
    assert str(step) == text


def test_text_form():
    assert str(schedule("allreduce", "ring", 2)) == """\
allreduce ring size=2 nblocks=2
rank 0
  0: copy out[0:2] <- in[0:2]
  1: send 1 out[0]; recv 1 out[1] (arriving op mine)
  2: send 1 out[1]; recv 1 out[0]
rank 1
  0: copy out[0:2] <- in[0:2]
  1: send 0 out[1]; recv 0 out[0] (arriving op mine)
  2: send 0 out[0]; recv 0 out[1]
"""


def test_title_names_what_matters():
    assert schedule("bcast", "knomial", 5, root=2, k=3).title == (
        "bcast knomial size=5 root=2 nblocks=1 k=3")
    assert schedule("alltoall", "bruck", 4).title == "alltoall bruck size=4 k=2"
    assert "topology=2x2" in schedule("allreduce", "rails", topology="2x2").title


def test_digest_changes_with_any_step_and_only_then():
    def build(rank, size, flip=0):
        other = 1 - rank
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(other, at(OUT, 0)),
                         recv(other, at(OUT, 0), reduce=RIGHT if rank == flip else LEFT))))

    one, same = (schedule("allreduce", build, 2) for _ in range(2))
    other = schedule("allreduce", lambda rank, size: build(rank, size, 1), 2)
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 16 and int(one.digest, 16) >= 0


def test_digests_are_what_they_were():
    # A schedule's digest is written into tuning files and traces: it must not depend on the run.
    assert schedule("allreduce", "ring", 4).digest == "3f58ea85682838eb"
    assert schedule("bcast", "binomial", 5, root=3).digest == "65c54ddc57235e13"


def test_equal_schedules_compare_equal_and_hash():
    assert schedule("allreduce", "ring", 4) == schedule("allreduce", "ring", 4)
    assert schedule("allreduce", "ring", 4) != schedule("allreduce", "ring", 5)
    assert hash(schedule("bcast", "knomial", 5)) == hash(schedule("bcast", "knomial", 5))


def test_a_schedule_checks_its_fields():
    ring = schedule("allreduce", "ring", 4)
    other = Collective("mine", "vector", ring.collective.given, ring.collective.wanted)
    for bad in ((other, 4, 0, 1), (ALLREDUCE, 0, 0, 1), (ALLREDUCE, 4, 4, 1),
                (ALLREDUCE, 4, 0, 0)):
        collective, size, root, nblocks = bad
        with pytest.raises(ArgumentError):
            Schedule(collective, "x", size, ring.build, root, nblocks)
    with pytest.raises(ArgumentError, match="rank: .*4.*0..3"):
        ring.program(4)
