"""Cases: the samples of block sizes."""


from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import ALLREDUCE
from hpccoll.proof.cases import cases


def test_samples_cover_the_hard_sizes():
    ring = schedule("allreduce", "ring", 4)
    made = list(cases(ring, ring.collective))
    totals = {sum(map(c.size_of, range(c.keys))) for c in made}
    assert {4, 6, 9, 10} <= totals
    sizes = [[c.size_of(key) for key in range(4)] for c in made]
    assert any(len(set(each)) == 4 and all(each) for each in sizes), "all different"
    assert any(0 in each[1:-1] for each in sizes), "some empty in between"
    assert any(c.segment for c in made)
    for case in made:
        if case.in_place:
            assert sum(map(case.size_of, range(case.keys))), "in place is not vacuous"
    assert sum(case.in_place for case in made) == 2
    assert len(list(cases(schedule("allreduce", "linear", 200), ALLREDUCE))) == 1
