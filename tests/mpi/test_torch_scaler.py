"""``AgreedGradScaler`` on real ranks: all ranks make a step, or none does."""

import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")
scaling = pytest.importorskip("hpccoll.torch.scaler")
hvd = pytest.importorskip("hpccoll.torch.horovod")
pytestmark = pytest.mark.mpi
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@pytest.fixture(autouse=True)
def started():
    hvd.init()
    yield
    hvd.shutdown()


def plain(weight):
    return torch.optim.SGD([weight], lr=1.0)


def wrapped(weight):
    return hvd.DistributedOptimizer(plain(weight), [("weight", weight)])


@pytest.mark.parametrize("overflowing", [0, SIZE - 1])
@pytest.mark.parametrize("make", [plain, wrapped])
def test_a_loss_scale_that_all_agree_on(make, overflowing):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = make(weight)
    scaler = scaling.AgreedGradScaler("cpu", init_scale=8.0, growth_interval=1)
    for scale, bad in ((16.0, False), (8.0, True), (16.0, False)):
        optimizer.zero_grad()
        slope = float("inf") if bad and overflowing == RANK else 1.0
        scaler.scale((weight * torch.tensor([slope, 1.0])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
    assert torch.equal(weight, torch.tensor([-2.0, -2.0]))


def test_a_rank_without_gradients_agrees_too():
    """As a rank that owns nothing of a sharded optimizer."""
    weight, owner = torch.nn.Parameter(torch.zeros(2)), RANK == 0
    optimizer = plain(weight)
    scaler = scaling.AgreedGradScaler("cpu", init_scale=8.0, growth_interval=1)
    for scale, bad in ((16.0, False), (8.0, True), (16.0, False)):
        optimizer.zero_grad()
        slope = float("inf") if bad else 1.0
        loss = scaler.scale((weight * torch.tensor([slope, 1.0])).sum())
        if owner:
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
    assert torch.equal(weight, torch.full((2,), -2.0 if owner else 0.0))


def test_gradients_are_unscaled_and_then_clipped():
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = wrapped(weight)
    scaler = scaling.AgreedGradScaler("cpu", init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert torch.nn.utils.clip_grad_norm_([weight], 1.0) == 2.0
    scaler.step(optimizer)
    assert torch.allclose(weight, torch.full((4,), -0.5), rtol=1e-5)
