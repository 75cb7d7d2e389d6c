"""``ZeroOptimizer`` at stage 3: modules whose weights come and go, on real ranks."""

import copy
import gc

import pytest
from mpi import zero_case
from mpi.zero_case import (
    RANK,
    SIZE,
    STRICT,
    batches,
    cut,
    loss_of,
    needs_threads,
    same,
    torch,
    tower,
    weights_of,
    zero,
)
from mpi4py import MPI

import hpccoll
from hpccoll.training.shard import Fetching, footprint

started, steady = zero_case.started, zero_case.steady
pytestmark = [pytest.mark.mpi, needs_threads, pytest.mark.usefixtures("started")]
WAYS = [Fetching(), STRICT, Fetching(persistent=20, prefetch=0), Fetching(persistent=0, reuse=9999)]


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("fetching", WAYS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_same_bits_as_plain_training(fetching, dtype):
    """Allreduce, divide, step; and as stages 1 and 2."""
    comm = hpccoll.Comm(MPI.COMM_WORLD, determinism="size")
    models = [tower(dtype) for _ in range(4)]
    groups = [[{"params": [each for name, each in model.named_parameters() if "mlp" in name],
                "lr": 0.2},
               {"params": [each for name, each in model.named_parameters() if "mlp" not in name]}]
              for model in models]
    optimizers = [zero.ZeroOptimizer(groups[stage], torch.optim.SGD, stage=stage, lr=0.05,
                                     momentum=0.9, module=models[stage],
                                     **{"fetching": fetching} if stage == 3 else {})
                  for stage in (1, 2, 3)]
    plain = models[0]
    exact = {each: each.detach().float() for each in plain.parameters()}
    by_plain = torch.optim.SGD([{**group, "params": [exact[each] for each in group["params"]]}
                                for group in groups[0]], lr=0.05, momentum=0.9)
    for batch in batches():
        for model in models:
            loss_of(model, batch[RANK]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for each, copied in exact.items():
            if dtype == torch.bfloat16:
                each.grad /= SIZE
            comm.Allreduce(MPI.IN_PLACE, zero.values(each.grad))
            copied.grad = each.grad.float()
            if dtype != torch.bfloat16:
                copied.grad /= SIZE
            each.grad = None
        by_plain.step()
        for each, copied in exact.items():
            each.data.copy_(copied)
    wanted = dict(plain.named_parameters())
    for model, optimizer in zip(models[1:], optimizers):
        assert same(weights_of(model, optimizer), wanted)


@pytest.mark.parametrize("units", [False, True])
def test_training_is_that_of_one_process(units):
    model, alone = tower(torch.float64), tower(torch.float64)
    if RANK:
        for each in model.parameters():
            each.data.zero_()
    optimizer = cut(model, torch.optim.AdamW, eps=1e-3,
                    units=[model.attention, model.mlp] if units else [])
    one = torch.optim.AdamW(alone.parameters(), lr=0.05, eps=1e-3)
    for batch in batches():
        one.zero_grad()
        optimizer.zero_grad()
        loss_of(alone, batch.flatten(0, 1)).backward()
        loss_of(model, batch[RANK]).backward()
        assert all(each.grad is None for each in model.parameters())
        one.step()
        optimizer.step()
    with optimizer.gathered():
        for mine, wanted in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(mine, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["passes", "checkpoint", "reentrant", "frozen", "evaluated",
                                  "two losses"])
def test_passes_of_all_kinds(kind):
    """As stage 2, which holds whole weights, in two steps."""
    from torch.utils.checkpoint import checkpoint

    models, optimizers = [tower(torch.float64) for _ in range(2)], []
    for stage, model in zip((2, 3), models):
        if kind == "frozen":
            model.mlp.requires_grad_(False)
            model.words.requires_grad_(False)
        if kind in ("checkpoint", "reentrant"):
            inner = model.mlp.forward
            model.mlp.forward = lambda x, inner=inner: checkpoint(
                inner, x, use_reentrant=kind == "reentrant")
        optimizers.append(zero.ZeroOptimizer(
            [each for each in model.parameters() if each.requires_grad], torch.optim.SGD,
            stage=stage, lr=0.1, momentum=0.5, module=model,
            backward_passes_per_step=2 if kind == "passes" else 1,
            **{"fetching": STRICT} if stage == 3 else {}))
    for first, second in batches(4).view(2, 2, SIZE, 2, 5):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            if kind == "two losses":
                (loss_of(model, first[RANK]) + loss_of(model, second[RANK])).backward()
            else:
                loss_of(model, first[RANK]).backward()
            if kind == "passes":
                loss_of(model, second[RANK]).backward()
            if kind == "evaluated":
                with torch.no_grad():
                    model.eval()(second[RANK])
            optimizer.step()
    left, right = map(weights_of, models, optimizers)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.allclose(left[name], right[name], rtol=1e-9, atol=1e-12), name
    moved = {name for name, each in tower(torch.float64).named_parameters()
             if not torch.equal(each, left[name])}
    assert len(moved) == (len(left) if kind != "frozen" else len(left) - 5)


def live_bytes():
    """Bytes of all tensors that there are, each memory once."""
    gc.collect()
    memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
              for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)}
    return sum(memory.values())


@pytest.mark.parametrize("dtype, state_bytes", [(torch.float32, 8), (torch.bfloat16, 12)],
                         ids=str)
def test_memory_is_the_closed_form(dtype, state_bytes):
    before = live_bytes()
    model = torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(4)]).to(dtype)
    count = sum(each.numel() for each in model.parameters())
    assert live_bytes() - before == pytest.approx(count * dtype.itemsize, rel=0.05)
    optimizer = cut(model, fetching=Fetching(persistent=0, reuse=0, prefetch=0))
    seen = []
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: seen.append(optimizer._cut._weights.live))
    for _ in range(2):
        loss = model(torch.ones(2, 100, dtype=dtype)).sum()
        assert optimizer._cut._weights.live == 0
        loss.backward()
        assert optimizer._cut._weights.live == 0
        optimizer.step()
        optimizer.zero_grad()
    del loss
    assert max(seen) == count // 4  # one layer at a time
    wanted = footprint(3, count, SIZE, dtype.itemsize, state_bytes)
    held = optimizer.footprint
    for mine, closed in zip(held, wanted):
        assert mine == pytest.approx(closed, rel=0.05)
    # Gradients wait in NumPy's memory.
    assert live_bytes() - before == pytest.approx(wanted.parameters + wanted.state, rel=0.05)


@pytest.mark.parametrize("stages", [(3, 3), (3, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_state_is_put_together_and_cut_anew(stages, dtype):
    """What goes on from a checkpoint makes the same steps, at another stage too, and alone."""
    def start(stage):
        model = tower(dtype)
        model.scale = torch.nn.Parameter(torch.ones((), dtype=dtype))  # of no dimension, unused
        groups = [{"params": [each for each in model.parameters() if each.dim() < 2], "lr": 0.01},
                  {"params": [each for each in model.parameters() if each.dim() >= 2]}]
        return model, zero.ZeroOptimizer(
            groups, torch.optim.NAdam, stage=stage, lr=0.02, eps=1e-3, module=model,
            bucket_bytes=500, **{"fetching": STRICT} if stage == 3 else {})

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        loss_of(model, batch[RANK]).backward()
        optimizer.step()

    first, *others = batches()
    model, optimizer = start(stages[0])
    step(model, optimizer, first)
    with optimizer.gathered():
        weights = copy.deepcopy(model.state_dict())
    saved, own = optimizer.full_state_dict(), copy.deepcopy(optimizer.state_dict())
    assert all(torch.equal(one, another) for one, another in zip(
        *[[value for entry in each["state"].values() for value in entry.values()]
          for each in MPI.COMM_WORLD.allgather(saved)[:1] + [saved]]))
    again, resumed = start(stages[1])
    with resumed.gathered():
        again.load_state_dict(weights)
    resumed.load_full_state_dict(saved)
    if dtype == torch.float32:
        alone = [torch.nn.Parameter(each) for given in optimizer._given for each in
                 [torch.empty(one.shape) for one in given]]
        torch.optim.NAdam([{"params": alone[:len(optimizer._given[0])]},
                           {"params": alone[len(optimizer._given[0]):]}]).load_state_dict(saved)
    for batch in others:
        step(model, optimizer, batch)
        step(again, resumed, batch)
    went_on = weights_of(model, optimizer)
    for name, each in weights_of(again, resumed).items():
        # Stages add in other orders: two roundings of what lies below a half.
        assert torch.allclose(each.float(), went_on[name].float(), rtol=1e-3,
                              atol=max(1e-6, torch.finfo(dtype).eps / 2)), name
    assert resumed.param_groups[0]["lr"] == 0.01
    # This rank's part alone, back to after the first step.
    optimizer.load_state_dict(own)
    for batch in others:
        step(model, optimizer, batch)
    for name, each in weights_of(model, optimizer).items():
        if stages[0] == 3 or dtype == torch.float16:
            assert torch.allclose(each.float(), went_on[name].float(), rtol=1e-3, atol=1e-6), name


def test_clipping_and_loss_scales():
    from hpccoll.torch.scaler import AgreedGradScaler

    model, alone = tower(torch.float64), tower(torch.float64)
    optimizer = cut(model, torch.optim.SGD, lr=1.0)
    scaler = AgreedGradScaler("cpu", init_scale=8.0, growth_interval=100)
    batch = batches(1)[0]
    start = weights_of(model, optimizer)
    for bad in (True, False):
        optimizer.zero_grad()
        loss = loss_of(model, batch[RANK])
        scaler.scale(loss * (float("inf") if bad and RANK == SIZE - 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        norm = zero.clip_grad_norm_(optimizer, 0.1)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 4.0
        if bad:  # left out on all ranks
            assert same(weights_of(model, optimizer), start)
    loss_of(alone, batch.flatten(0, 1)).backward()
    wanted = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    assert torch.isclose(norm.double(), wanted, rtol=1e-6)
    with optimizer.gathered():
        for mine, each in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(mine, each - each.grad, rtol=1e-6, atol=1e-9)
