"""Averages of weights, and late gradients, on real ranks."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.training.averaging import NODE, LateExchange, ModelAverager

pytestmark = pytest.mark.mpi


def test_weights_are_averaged_in_their_periods(world):
    mine = [numpy.zeros((3, 4), "f4"), numpy.zeros(1 << 16)]
    averager, log = ModelAverager(world, mine, {1: NODE, 3: world.size}), []
    for _ in range(3):
        for array in mine:
            array += world.rank
        log.append(averager.step())
    assert log[-1] == world.size
    assert all((array == array.flat[0]).all() for array in mine)
    assert mine[0][0, 0] == pytest.approx(3 * (world.size - 1) / 2)
    averager.close()


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs THREAD_MULTIPLE")
@pytest.mark.parametrize("count", (1, 1000, 1 << 18))
def test_gradients_come_one_step_late(world, count):
    exchange, found = LateExchange(world, [numpy.zeros(count, "f4"), numpy.zeros(3)]), []
    for step in range(4):
        late = exchange.exchange([numpy.full(count, step + world.rank, "f4"),
                                  numpy.full(3, float(step))])
        assert (late is None) == (step == 0)
        found += [] if late is None else [float(late[0][-1])]
    found += [float(late[0][-1]) for late in exchange.finish()]
    assert found == pytest.approx([step + (world.size - 1) / 2 for step in range(4)])
