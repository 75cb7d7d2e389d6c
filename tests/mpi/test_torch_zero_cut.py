"""``ZeroOptimizer`` at stage 3: modules whose weights come and go, on real ranks."""

import copy
import gc

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError, ExchangeError, ShardError
from hpccoll.training.shard import Fetching, footprint

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
zero = pytest.importorskip("hpccoll.torch.zero")
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs THREAD_MULTIPLE")]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
#: Nothing stays whole, nothing is kept for its next use.
STRICT = Fetching(persistent=0, reuse=0)
WAYS = [Fetching(), STRICT, Fetching(persistent=20, prefetch=0), Fetching(persistent=0, reuse=9999)]


@pytest.fixture
def steady(monkeypatch):
    """Sums have one order."""
    monkeypatch.setenv("HPCCOLL_DETERMINISM", "size")


@pytest.fixture(autouse=True)
def started(request):
    if "steady" in request.fixturenames:
        request.getfixturevalue("steady")
    hvd.init()
    yield
    hvd.shutdown()


class Tower(torch.nn.Module):
    """Tied weights, attention (which takes weights from a module inside), a norm, a parameter."""

    def __init__(self, width=8, words=11):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.place = torch.nn.Parameter(torch.randn(5, width))
        self.attention = torch.nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 19), torch.nn.ReLU(inplace=True),
                                       torch.nn.Linear(19, width))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.place
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm(x)))


def tower(dtype=torch.float32):
    torch.manual_seed(3)
    return Tower().to(dtype)


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def batches(steps=3):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 11, (steps, SIZE, 2, 5), generator=generator)


def cut(model, kind=torch.optim.Adam, params=None, **options):
    return zero.ZeroOptimizer(model.parameters() if params is None else params, kind, stage=3,
                              module=model, **{"fetching": STRICT, "lr": 0.05, **options})


def weights_of(model, optimizer):
    with optimizer.gathered():
        return {name: each.detach().clone() for name, each in model.named_parameters()}


def same(one, another):
    return one.keys() == another.keys() and all(
        torch.equal(one[name], another[name]) for name in one)


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
        assert torch.allclose(each.float(), went_on[name].float(), rtol=1e-3, atol=1e-6), name
    assert resumed.param_groups[0]["lr"] == 0.01
    # This rank's part alone, back to after the first step.
    optimizer.load_state_dict(own)
    for batch in others:
        step(model, optimizer, batch)
    for name, each in weights_of(model, optimizer).items():
        if stages[0] == 3 or dtype == torch.float16:
            assert torch.allclose(each.float(), went_on[name].float(), rtol=1e-3, atol=1e-6), name


def test_clipping_and_loss_scales():
    model, alone = tower(torch.float64), tower(torch.float64)
    optimizer = cut(model, torch.optim.SGD, lr=1.0)
    batch = batches(1)[0]
    loss_of(alone, batch.flatten(0, 1)).backward()
    loss_of(model, batch[RANK]).backward()
    wanted = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    assert torch.isclose(zero.clip_grad_norm_(optimizer, 0.1).double(), wanted, rtol=1e-6)
    scaler = hpccoll_scaler(enabled=False)
    scaler.step(optimizer)
    with optimizer.gathered():
        for mine, each in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(mine, each - each.grad, rtol=1e-6, atol=1e-9)


def hpccoll_scaler(**options):
    from hpccoll.torch.scaler import AgreedGradScaler

    return AgreedGradScaler("cpu", **options)


def test_weights_that_are_not_here():
    model = tower()
    optimizer = cut(model)
    weight = model.mlp[0].weight
    assert weight.shape == (19, 8) and weight.numel() == 19 * 8 and weight.requires_grad
    assert isinstance(weight, torch.nn.Parameter) and "AbsentParameter" in repr(weight)
    for use in (lambda: weight + 1, lambda: weight.data, lambda: torch.stack([weight, weight]),
                lambda: torch.nn.functional.linear(torch.ones(8), weight),
                model.state_dict, lambda: copy.deepcopy(model), lambda: model.to(torch.float64)):
        with pytest.raises(ExchangeError, match="outside of its model's forward.*gathered"):
            use()
    with pytest.raises(ExchangeError, match=r"parameter 'mlp\.0\.weight' is used"):
        weight.sum()
    with optimizer.gathered(model.mlp):
        assert weight.detach().abs().sum() > 0
        assert torch.nn.functional.linear(torch.ones(8), weight).shape == (19,)
        with pytest.raises(ExchangeError, match="'words.weight'"):
            model.words.weight.sum()
    first = batches(1)[0][RANK]
    with pytest.raises(IndexError):  # a forward that fails leaves nothing behind
        model(torch.full((2, 5), 99))
    assert optimizer._cut._weights.live == 0 and not optimizer._cut._stack
    loss = loss_of(model, first)
    again = loss_of(model, first)
    again.backward()
    optimizer.step()
    with pytest.raises(ExchangeError, match="changed since the forward pass"):
        loss.backward()


def test_changes_in_place_are_found_as_ever():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    optimizer = cut(model)
    middle = []
    model[1].register_forward_hook(lambda module, args, output: middle.append(output))
    loss = model(torch.ones(1, 3)).sum()
    middle[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.synchronize()


def test_gradients_that_do_not_come():
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
    last = SIZE - 1

    def backward():
        # Rank by rank one layer more: what is fetched is the same, what is used is not.
        x = model["one"](torch.ones(1, 2))
        y = model["two"](torch.ones(1, 2))
        (x if RANK == last else x + y).sum().backward()

    for stage in (1, 2, 3):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
        options = {"fetching": STRICT} if stage == 3 else {}
        optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=stage, lr=1.0,
                                       module=model, missing="raise", **options)
        before = weights_of(model, optimizer)
        backward()
        with pytest.raises(ShardError, match=f"^rank {last}: the gradient of 'two") as told:
            optimizer.step()
        assert len(told.value.faults[last]) == 2
        assert same(weights_of(model, optimizer), before)
        optimizer.zero_grad()
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
    optimizer = cut(model, torch.optim.SGD, op=hvd.Sum, lr=1.0)
    before = weights_of(model, optimizer)
    backward()
    optimizer.step()
    after = weights_of(model, optimizer)
    assert torch.equal(after["two.bias"], before["two.bias"] - (SIZE - 1))
    assert torch.equal(after["one.bias"], before["one.bias"] - SIZE)


@pytest.mark.skipif(SIZE == 1, reason="needs ranks that differ")
def test_ranks_that_run_other_modules_learn_of_it():
    """Parts are equally large: MPI takes the gathers of one unit for those of the other."""
    model = torch.nn.ModuleList([torch.nn.Linear(5, 6) for _ in range(2)])
    optimizer = cut(model, fetching=Fetching(persistent=0, reuse=0, prefetch=0))
    before = weights_of(model, optimizer)
    order = [1, 0] if RANK == SIZE - 1 else [0, 1]
    sum(model[each](torch.ones(1, 5)).sum() for each in order).backward()
    with pytest.raises(ShardError, match=f"^rank {SIZE - 1}: has fetched other weights"):
        optimizer.step()
    assert same(weights_of(model, optimizer), before)
    optimizer.zero_grad()
    sum(each(torch.ones(1, 5)).sum() for each in model).backward()
    optimizer.step()
    assert not same(weights_of(model, optimizer), before)


def test_what_makes_no_sense():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for options, problem in (
            ({"params": [*model.parameters(), *other.parameters()]}, "2 of them are not"),
            ({"params": [model.weight]}, "lacks bias"), ({"units": [other]}, "not inside"),
            ({"missing": "some"}, "zeros, raise")):
        with pytest.raises(ArgumentError, match=problem):
            cut(model, **options)
    with pytest.raises(ArgumentError, match="no units"):
        zero.ZeroOptimizer(model.parameters(), torch.optim.SGD, units=[model])
    optimizer = cut(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ExchangeError, match="under way"):
        optimizer.zero_grad()
    model(torch.ones(1, 2))
    with pytest.raises(ExchangeError, match="backward_passes_per_step"):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(ArgumentError, match="groups of"):
        optimizer.load_full_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
