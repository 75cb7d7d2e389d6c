"""The exchange on real ranks: what goes wrong on one reaches all, and a stall gets a name."""

import time

import numpy
import pytest

from hpccoll.errors import ExchangeStall, RankFailed
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.training.exchange import Exchange, ExchangeOptions

ORDERS = pytest.mark.parametrize("options", [
    {}, {"options": ExchangeOptions(transfer="nonblocking")},
    {"order": "negotiated", "options": ExchangeOptions(vote_seconds=0.01)}], ids=str)


@pytest.fixture(autouse=True)
def forgotten():
    """What can never end, because an exchange failed, is not for later tests to find."""
    before = set(PROGRESS.operations)
    yield
    for operation in set(PROGRESS.operations) - before:
        PROGRESS.remove(operation)


@pytest.fixture
def last(world):
    """The last rank, of several."""
    if world.Get_size() == 1:
        pytest.skip("needs another rank")
    return world.Get_size() - 1


@pytest.mark.mpi
@ORDERS
def test_a_rank_that_raises(world, last, options):
    me = world.Get_rank()
    with pytest.raises(ZeroDivisionError if me == last else RankFailed) as raised:
        with Exchange(world, [numpy.zeros(3), numpy.zeros(5)], **options) as exchange:
            exchange.ready(1, numpy.zeros(5))
            if me == last:
                raise ZeroDivisionError("in the backward pass")
            exchange.ready(0, numpy.zeros(3))
            exchange.wait()
    if me != last:
        assert raised.value.ranks == (last,) and "in the backward pass" in str(raised.value)
    world.Barrier()


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore:hpccoll. rank")
@ORDERS
def test_a_stall(world, last, options):
    me = world.Get_rank()
    exchange = Exchange(world, [numpy.zeros(3), numpy.zeros(5)], names=["bias", "weight"],
                        report_seconds=0.1, timeout_seconds=1.0, **options)
    exchange.ready("weight", numpy.zeros(5))
    with pytest.raises(ExchangeStall) as raised:
        if me == last:
            time.sleep(2.0)  # its program computes; its thread answers
        exchange.ready("bias", numpy.zeros(3))
        exchange.wait()
    exchange.close()
    assert raised.value.arrays == ("bias",) and raised.value.ranks == (last,)
    assert f"'bias' is missing on rank {last}" in str(raised.value)
    world.Barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("options", [{"uneven": True}, {"order": "negotiated"}], ids=str)
def test_ranks_run_out_of_data(world, options):
    rank, size = world.Get_rank(), world.Get_size()
    with Exchange(world, [numpy.zeros(2000)], op="sum", **options) as exchange:
        for step in range(2 * rank):
            array = numpy.ones(2000)
            exchange.ready(0, array)
            exchange.wait()
            assert (array == sum(2 * other > step for other in range(size))).all()
        assert exchange.join() == size - 1
