"""Cases: the samples of block sizes."""


from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import ALLREDUCE
from hpccoll.proof.cases import cases


def test_samples_cover_the_hard_sizes():
    ring = schedule("allreduce", "ring", 4)
    made = list(cases(ring, ring.collective))
    totals = {sum(map(c.size_of, range(c.keys))) for c in made}
    assert {0, 1, 3, 4, 5} <= totals
    assert any(c.in_place for c in made) and any(c.segment for c in made)
    assert len(list(cases(schedule("allreduce", "linear", 200), ALLREDUCE))) == 1
