"""Linear: landing space of a reduction."""

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import linear


def test_a_linear_reduction_bounds_its_landing_space():
    program = schedule("reduce", "linear", 200, root=77).program(77)
    assert max(map(len, program.rounds)) == linear.FAN
    assert sum(map(len, program.rounds[1:])) == 199
