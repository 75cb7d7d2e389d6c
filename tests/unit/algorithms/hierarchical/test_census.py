"""Lane census: windows of groups."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.hierarchical.bruck import windows
from hpccoll.algorithms.hierarchical.census import digits
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove, verify


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("shape", ["6", "4x3", "7x2", "2x2x2", "1,4,2", "3,4,3,5,3,3", "9x4"])
def test_any_number_of_lanes(k, shape):
    """Some of each case: several digits, no power of two of lanes, ranks that are no lane."""
    made = schedule("allreduce", "lane_census", topology=shape, k=k)
    if made.size < 12:
        verify(made)
    else:
        proof = prove(made, made.collective, next(iter(cases(made, made.collective))))
        assert made.rounds in (None, proof.rounds) and made.sent in (None, proof.sent)


def test_windows_end_as_all_other_groups():
    """Lanes' sums lie side by side: those of t lanes are longer by one."""
    for k in range(1, 9):
        for count in range(2, 200):
            covered = 0
            for digit in digits(count, k):
                assert 0 <= digit <= k
                covered += digit * (covered + 1) + (k - digit) * covered
            assert covered == count - 1
            assert len(digits(count, k)) == len(windows(count, k))
            assert 1 + sum(min(window * k, count - window)
                           for window in windows(count, k)) == count
    assert digits(1, 4) == [] == windows(1, 4)
