"""``ZeroOptimizer`` and clipping on real ranks: what an optimizer with whole state does."""

import copy
import math

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ExchangeError, ExchangeMismatch

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
zero = pytest.importorskip("hpccoll.torch.zero")
scaling = pytest.importorskip("hpccoll.torch.scaler")
pytestmark = pytest.mark.mpi
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@pytest.fixture(autouse=True)
def started():
    hvd.init()
    yield
    hvd.shutdown()


def network(dtype=torch.float64):
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
                               ).to(dtype)


def loss_of(model, part):
    return (model(part) - part[:, :3]).square().mean()


KINDS = [(torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}), (torch.optim.Adam, {}),
         (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.1}), (torch.optim.RMSprop, {}),
         (torch.optim.Adagrad, {}), (torch.optim.NAdam, {}), (torch.optim.SGD, {})]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind, options", KINDS, ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize("bucket_bytes", [1 << 20, 100])
def test_training_is_that_of_one_process(kind, options, stage, bucket_bytes):
    model, alone = network(), network()
    if RANK:
        for each in model.parameters():
            each.data.zero_()
    groups = [[{"params": each[0].parameters(), "lr": 0.1}, {"params": each[2].parameters()}]
              for each in (alone, model)]
    one = kind(groups[0], lr=0.02, **options)
    cut = zero.ZeroOptimizer(groups[1], kind, stage=stage, lr=0.02, bucket_bytes=bucket_bytes,
                             **options)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (one, cut)]
    for batch in torch.randn(4, SIZE, 2, 5, dtype=torch.float64):
        one.zero_grad()
        cut.zero_grad()
        loss_of(alone, batch.flatten(0, 1)).backward()
        loss_of(model, batch[RANK]).backward()
        one.step()
        cut.step()
        for schedule in schedules:
            schedule.step()
        if stage == 2:
            assert all(each.grad is None for each in model.parameters())
    for mine, wanted in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine, wanted, rtol=1e-9, atol=1e-12)
    assert [each["lr"] for each in cut.param_groups] == [each["lr"] for each in one.param_groups]


def test_state_is_cut():
    model = network()
    count = sum(each.numel() for each in model.parameters())
    cut = zero.ZeroOptimizer(model.parameters(), torch.optim.Adam, lr=0.1, bucket_bytes=100)
    loss_of(model, torch.ones(2, 5, dtype=torch.float64)).backward()
    cut.step()
    held = sum(value.numel() for state in cut.state.values() for key, value in state.items()
               if key != "step")
    assert abs(held - 2 * count / SIZE) <= 2
    assert sum(hvd.allgather_object(held)) == 2 * count
    saved = copy.deepcopy(cut.state_dict())
    before = [each.clone() for each in model.parameters()]
    results = []
    for _ in range(2):
        for each, start in zip(model.parameters(), before):
            each.data.copy_(start)
        cut.load_state_dict(copy.deepcopy(saved))
        cut.zero_grad()
        loss_of(model, torch.ones(2, 5, dtype=torch.float64)).backward()
        cut.step()
        results.append([each.clone() for each in model.parameters()])
    assert all(map(torch.equal, *results))
    with pytest.raises(ArgumentError, match="another rank"):
        cut.load_state_dict({**saved, "cut": None})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_types_keep_exact_weights(dtype):
    weight = torch.nn.Parameter(torch.full((5,), 256.0).to(dtype))
    cut = zero.ZeroOptimizer([weight], torch.optim.SGD, lr=0.25)
    for _ in range(16):
        cut.zero_grad()
        weight.sum().backward()
        cut.step()
    # Steps of a quarter vanish in numbers of two bytes; together they do not.
    assert torch.equal(weight, torch.full((5,), 252.0).to(dtype))


@pytest.mark.parametrize("count", [0, 1, SIZE - 1, SIZE + 1])
def test_fewer_elements_than_ranks(count):
    weights = [torch.nn.Parameter(torch.zeros(count)), torch.nn.Parameter(torch.zeros(2, 0)),
               torch.nn.Parameter(torch.zeros(()))]
    cut = zero.ZeroOptimizer(weights, torch.optim.Adam, op=hvd.Sum, lr=1.0)
    sum((each * (RANK + 1)).sum() for each in weights).backward()
    cut.synchronize()
    total = SIZE * (SIZE + 1) / 2
    assert all((each.grad == total).all() for each in cut.shards)
    cut.step()
    assert torch.allclose(weights[0], torch.full((count,), -1.0))


def test_passes_add_up_and_parameters_may_be_left_out():
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    cut = zero.ZeroOptimizer(weights, torch.optim.SGD, op=hvd.Sum, backward_passes_per_step=2,
                             lr=1.0, stage=2)
    for turn in (1, 2):
        ((RANK + turn) * weights[1 if RANK else 0]).sum().backward()
    cut.step()
    assert torch.equal(weights[0], torch.full((3,), -3.0))
    assert torch.equal(weights[1], torch.full((3,), -sum(2.0 * rank + 3 for rank in range(1, SIZE))
                                              if SIZE > 1 else 0.0))


@pytest.mark.parametrize("order", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_clipping_by_the_norm_of_all(order, limit):
    model, alone = network(), network()
    cut = zero.ZeroOptimizer(model.parameters(), torch.optim.SGD, lr=1.0, bucket_bytes=100)
    batch = torch.randn(SIZE, 2, 5, dtype=torch.float64)
    loss_of(alone, batch.flatten(0, 1)).backward()
    loss_of(model, batch[RANK]).backward()
    wanted = torch.nn.utils.clip_grad_norm_(alone.parameters(), limit, order)
    norm = zero.clip_grad_norm_(cut, limit, order)
    assert torch.isclose(norm.double(), wanted, rtol=1e-6)
    cut.step()
    for mine, each in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine, each - each.grad, rtol=1e-6)


def test_a_loss_scale_that_all_agree_on():
    weights = [torch.nn.Parameter(torch.zeros(max(SIZE - 1, 1)))]  # one rank owns nothing
    cut = zero.ZeroOptimizer(weights, torch.optim.SGD, lr=1.0)
    scaler = scaling.AgreedGradScaler("cpu", init_scale=8.0, growth_interval=1)
    for scale, bad in ((16.0, False), (8.0, True), (16.0, False)):
        cut.zero_grad()
        slope = torch.ones_like(weights[0])
        slope[0] = float("inf") if bad else 1.0
        scaler.scale((weights[0] * slope).sum()).backward()
        scaler.step(cut)
        scaler.update()
        assert scaler.get_scale() == scale
    assert torch.equal(weights[0], torch.full_like(weights[0], -2.0))


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_are_unscaled_and_then_clipped(stage):
    weight = torch.nn.Parameter(torch.zeros(4))
    cut = zero.ZeroOptimizer([weight], torch.optim.SGD, lr=1.0, stage=stage)
    scaler = scaling.AgreedGradScaler("cpu", init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(cut)
    assert zero.clip_grad_norm_(cut, 1.0) == 2.0
    scaler.step(cut)
    assert torch.allclose(weight, torch.full((4,), -0.5), rtol=1e-5)


def test_what_makes_no_sense():
    def make(kind=torch.optim.SGD, **options):
        return zero.ZeroOptimizer([torch.nn.Parameter(torch.zeros(4))], kind, **options)

    for call, problem in ((lambda: make(stage=4), "choose from 1, 2, 3"),
                          (lambda: make(stage=3), "module=model"),
                          (lambda: make(op=hvd.Max), "max"),
                          (lambda: make(torch.optim.LBFGS), "alone"),
                          (lambda: make(torch.optim.Adafactor, lr=0.1), "whole tensors"),
                          (lambda: make(lr=1.0).step(lambda: 0), "closure"),
                          (lambda: make(lr=1.0).add_param_group({"params": []}), "cut")):
        with pytest.raises(ArgumentError, match=problem):
            call()
    weight = torch.nn.Parameter(torch.zeros(2))
    cut = zero.ZeroOptimizer([weight], torch.optim.SGD, lr=1.0)
    weight.sum().backward()
    with pytest.raises(ExchangeError, match="under way"):
        cut.zero_grad()
    with pytest.raises(ExchangeError, match="backward_passes_per_step"):
        weight.sum().backward()
    cut.step()
    if SIZE > 1:
        with pytest.raises(ExchangeMismatch, match=str(SIZE - 1)):
            zero.ZeroOptimizer([torch.nn.Parameter(torch.zeros(2 + (RANK == SIZE - 1)))],
                               torch.optim.SGD)
