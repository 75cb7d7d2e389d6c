"""``DistributedOptimizer`` on real ranks: what one would have computed, and what goes wrong."""

import copy

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ExchangeError, RankFailed

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
pytestmark = pytest.mark.mpi
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
several = pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to disagree with")
EVERY = range(SIZE)


@pytest.fixture(autouse=True)
def started():
    hvd.init()
    yield
    hvd.shutdown()


class Slopes(torch.nn.Module):
    """Parameters whose gradients are what is passed."""

    def __init__(self, *shapes, dtype=torch.float32):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(shape, dtype=dtype) for shape in shapes)

    def forward(self, *slopes):
        return sum((each * slope).sum() for each, slope in zip(self.all, slopes)
                   if slope is not None)

    def grads(self):
        return [each.grad for each in self.all]


def slopes(rank, *shapes):
    """Whole numbers, different on every rank and at every place."""
    return [torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 + 4.0 * rank + index
            for index, shape in enumerate(shapes)]


def wrapped(model, kind=torch.optim.SGD, **options):
    return hvd.DistributedOptimizer(kind(model.parameters(), lr=1.0), model.named_parameters(),
                                    **options)


def total(*shapes):
    return [sum(parts) for parts in zip(*(slopes(rank, *shapes) for rank in EVERY))]


SHAPES = (5, 3), (1,), (0,), (4,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("options, factor", [
    ({}, 1 / SIZE), ({"op": "sum"}, 1), ({"gradient_predivide_factor": 2.0}, 1 / SIZE),
    ({"groups": 2}, 1 / SIZE), ({"compression": hvd.Compression.bf16, "op": "sum"}, 1),
    ({"compression": "fp16", "op": "sum"}, 1)], ids=str)
def test_gradients_are_reduced_exactly(options, factor, dtype):
    model = Slopes(*SHAPES, dtype=dtype)
    optimizer = wrapped(model, **options)
    for _ in range(3):  # buckets are cut anew after the first step
        optimizer.zero_grad()
        model(*slopes(RANK, *SHAPES)).backward()
        optimizer.synchronize()
        for grad, wanted in zip(model.grads(), total(*SHAPES)):
            assert torch.allclose(grad.double(), wanted.double() * factor,
                                  rtol=torch.finfo(dtype).eps)
        optimizer.step()
    assert torch.equal(model.all[0], -3 * model.all[0].grad)


@pytest.mark.parametrize("compression, value", [("bf16", 257.0), ("fp16", 2049.0)])
def test_gradients_are_sent_in_the_compressed_type(compression, value):
    """It rounds these numbers; those of the other tests are exact in it."""
    model = Slopes((4,))
    optimizer = wrapped(model, compression=compression, op="sum")
    model(torch.full((4,), value)).backward()
    optimizer.synchronize()
    found = model.grads()[0] / SIZE
    assert SIZE == 1 or (found != value).all() and torch.allclose(found, torch.tensor(value), 0.01)


def test_groups_by_hand():
    model = Slopes(*SHAPES)
    groups = [[model.all[0], model.all[3]]]
    optimizer = wrapped(model, groups=groups, op=hvd.Sum)
    model(*slopes(RANK, *SHAPES)).backward()
    optimizer.synchronize()
    assert all(map(torch.equal, model.grads(), total(*SHAPES)))
    with pytest.raises(ArgumentError, match="groups"):
        wrapped(Slopes((1,)), groups=groups)


KINDS = [(torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}), (torch.optim.Adam, {}),
         (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.Adagrad, {}),
         (torch.optim.LBFGS, {"max_iter": 4, "line_search_fn": "strong_wolfe"})]


@pytest.mark.parametrize("kind, options", KINDS, ids=lambda each: getattr(each, "__name__", ""))
def test_training_is_that_of_one_process(kind, options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model.double()
    alone = copy.deepcopy(model)
    data = torch.randn(6, SIZE, 5, 6, dtype=torch.float64)
    if RANK:
        for each in model.parameters():
            each.data.zero_()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    one = kind(alone.parameters(), lr=0.05, **options)
    all_ = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.05, **options),
                                    model.named_parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2) for each in (one, all_)]
    for batch in data:
        for network, optimizer, part in ((alone, one, batch.flatten(0, 1)),
                                         (model, all_, batch[RANK])):
            def closure(network=network, optimizer=optimizer, part=part):
                optimizer.zero_grad()
                loss = (network(part) - part[:, :2]).square().mean()
                loss.backward()
                return loss

            if kind is torch.optim.LBFGS:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        for schedule in schedules:
            schedule.step()
    for mine, wanted in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine, wanted, rtol=1e-9, atol=1e-12)
    assert isinstance(all_, kind) and all_.param_groups[0]["lr"] == one.param_groups[0]["lr"]
    saved = all_.state_dict()
    assert saved["state"].keys() == one.state_dict()["state"].keys()
    all_.load_state_dict(saved)
    if kind is not torch.optim.LBFGS:
        all_.zero_grad()
        model(data[0][RANK]).sum().backward()
        all_.step()


def test_a_scheduler_made_before():
    model = Slopes((3,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    model(*slopes(RANK, (3,))).backward()
    optimizer.step()
    assert torch.equal(model.all[0], -total((3,))[0])


def test_hooks_of_a_step_run_once():
    model, calls = Slopes((1,)), []
    optimizer = wrapped(model)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert calls == ["before", "after"]


def test_gradients_add_up_over_passes():
    model = Slopes((4,), (2,))
    optimizer = wrapped(model, op=hvd.Sum, backward_passes_per_step=3)
    for passes in (3, 3, 2):  # a step may also come early
        optimizer.zero_grad()
        for turn in range(passes):
            assert not optimizer._gradients.under_way
            model(*[(turn + 1) * each for each in slopes(RANK, (4,), (2,))]).backward()
        optimizer.synchronize()
        factor = passes * (passes + 1) / 2
        assert all(torch.equal(grad, factor * wanted)
                   for grad, wanted in zip(model.grads(), total((4,), (2,))))
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    model(*slopes(RANK, (4,), (2,))).backward()
    optimizer.synchronize()
    assert torch.equal(model.all[0].grad, total((4,))[0])


def test_parameters_that_a_pass_does_not_reach():
    model = Slopes((2,), (3,), (4,))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5), op=hvd.Sum)
    model.all[2].data.fill_(8)
    for _ in range(2):
        optimizer.zero_grad()
        # The first is used everywhere, the second on the last rank, the third nowhere.
        first, second, _ = slopes(RANK, (2,), (3,), (4,))
        model.all[1].data.zero_()
        model(first, second if RANK == SIZE - 1 else None, None).backward()
        optimizer.step()
        assert torch.equal(model.all[1].grad, slopes(SIZE - 1, (2,), (3,))[1])
        assert torch.equal(model.all[1], -slopes(SIZE - 1, (2,), (3,))[1])
        assert model.all[2].grad is None and torch.equal(model.all[2], torch.full((4,), 8.0))


def test_a_model_that_grows():
    model = Slopes((2,), (3,))
    model.all[1].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), op=hvd.Sum)
    shapes = [(2,), (3,), (4,)]
    for step in range(6):
        if step == 1:
            model.all.append(torch.nn.Parameter(torch.zeros(4)))
            optimizer.add_param_group({"params": [model.all[2]]})
        if step == 3:
            model.all[1].requires_grad_(True)
        optimizer.zero_grad()
        model(*slopes(RANK, *shapes)).backward()
        optimizer.step()
        for index, each in enumerate(model.all):
            wanted = None if index == 1 and step < 3 else total(*shapes)[index]
            assert each.grad is wanted or torch.equal(each.grad, wanted)


@several
def test_a_model_that_grows_on_one_rank_is_an_error_on_all():
    model = Slopes((2,))
    optimizer = wrapped(model)
    if RANK == 1:
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4))]})
    model(*slopes(RANK, (2,))).backward()
    with pytest.raises(ExchangeError, match="rank 0.*1, rank 1.*2"):
        optimizer.step()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense):
    table = torch.nn.Embedding(10, 2, sparse=True)
    other = torch.nn.Linear(2, 1, bias=False)
    for each in (*table.parameters(), *other.parameters()):
        each.data.fill_(1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*table.parameters(), *other.parameters()], lr=0.0), op=hvd.Sum,
        sparse_as_dense=as_dense)
    for _ in range(3):
        optimizer.zero_grad()
        rows = torch.tensor([RANK, 9, 9][:3 if RANK != 1 else 1])
        other(table(rows)).sum().backward()
        optimizer.step()
        grad = table.weight.grad
        assert grad.is_sparse is not as_dense
        wanted = torch.zeros(10, 2)
        for rank in EVERY:
            wanted[rank] += 1
            wanted[9] += 2 * (rank != 1)
        assert torch.equal(grad.to_dense(), wanted)
        assert other.weight.grad[0, 0] == wanted.sum() / 2


def test_clipping_between_synchronize_and_step():
    model = Slopes((3,))
    optimizer = wrapped(model, op=hvd.Sum)
    for skip in (True, False):
        optimizer.zero_grad()
        model.all[0].data.zero_()
        model(*slopes(RANK, (3,))).backward()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert torch.isclose(norm, total((3,))[0].norm())
        if skip:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        assert torch.isclose(model.all[0].norm(), torch.tensor(1.0))


# -- the same start ---------------------------------------------------------------------------
def test_parameters_and_state_of_the_root():
    root = SIZE - 1
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
    for each in model.state_dict().values():
        each.fill_(RANK)
    for given in (model.state_dict(), model.named_parameters(), list(model.parameters())):
        for each in model.parameters():
            each.data.fill_(RANK)
        hvd.broadcast_parameters(given, root_rank=root)
        assert all((each == root).all() for each in model.parameters())
    assert all((each == root).all() for each in model.state_dict().values())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if RANK == root else 9.0)
    if RANK == root:
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    assert optimizer.param_groups[0]["lr"] == 0.5
    states = hvd.allgather_object(optimizer.state_dict())
    assert len(states[0]["state"]) == 4
    for state in states:
        for number, entry in state["state"].items():
            assert entry.keys() == states[root]["state"][number].keys()
            for key, value in entry.items():
                assert torch.equal(value, states[root]["state"][number][key])
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=1.0), 0)  # has none


# -- what goes wrong --------------------------------------------------------------------------
@several
@pytest.mark.parametrize("mistake", ["zero_grad", "too many passes", "fail", "shutdown"])
def test_a_mistake_on_one_rank_is_an_error_on_all(mistake):
    model = Slopes((2,), (3,))
    optimizer = wrapped(model)
    model(*slopes(RANK, (2,), (3,))[:1 + RANK]).backward()
    if RANK == 0 and mistake == "zero_grad":
        with pytest.raises(ExchangeError, match="pending"):
            optimizer.zero_grad()
    elif RANK == 0 and mistake == "too many passes":
        with pytest.raises(ExchangeError, match="backward_passes_per_step"):
            model(*slopes(RANK, (2,))).backward()
    elif RANK == 0 and mistake == "fail":
        optimizer.fail(ValueError("no more data"))
    elif RANK == 0:
        optimizer._gradients.close()
    else:
        with pytest.raises(ExchangeError, match="rank 0|during a step"):
            optimizer.step()
    if RANK == 0 and mistake == "fail":
        with pytest.raises(RankFailed, match="no more data"):
            optimizer.step()


@pytest.mark.parametrize("options, problem", [
    ({"op": hvd.Max}, "max"), ({"op": "sum", "gradient_predivide_factor": 2.0}, "Average"),
    ({"backward_passes_per_step": 0}, "at least 1"),
    ({"named_parameters": [torch.zeros(1)]}, "pairs"),
    ({"named_parameters": [("a", torch.zeros(1)), ("a", torch.zeros(1))]}, "duplicate"),
    ({"named_parameters": [("a", torch.zeros(1))]}, "name"),
    ({"compression": "zip"}, "zip")])
def test_arguments_that_make_no_sense(options, problem):
    with pytest.raises(ArgumentError, match=problem):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0),
                                 **options)


def test_a_process_set():
    halves = hvd.add_process_set(hvd.ProcessSet(MPI.COMM_WORLD.Split(RANK % 2, RANK)))
    model = Slopes((3,))
    optimizer = wrapped(model, op=hvd.Sum, process_set=halves)
    model(*slopes(RANK, (3,))).backward()
    optimizer.step()
    assert torch.equal(model.all[0].grad, sum(slopes(rank, (3,))[0] for rank in halves.ranks))
