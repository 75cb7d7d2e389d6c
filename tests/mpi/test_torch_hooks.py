"""Hooks of DDP on real ranks: exact means, residuals that follow parameters, errors."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError

torch = pytest.importorskip("torch")
hooks = pytest.importorskip("hpccoll.torch.hooks")
pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


@pytest.fixture(scope="module", autouse=True)
def gloo(tmp_path_factory):
    """Any process group will do: the hook has a way of its own."""
    path = WORLD.bcast(str(tmp_path_factory.mktemp("gloo") / "store"))
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=RANK,
                                         world_size=SIZE)
    yield
    torch.distributed.destroy_process_group()


class Slopes(torch.nn.Module):
    """Parameters whose gradients are what is passed; used in another order than they stand."""

    def __init__(self, shapes, dtype=torch.float32):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(shape, dtype=dtype) for shape in shapes)

    def forward(self, slopes):
        total = 0.0
        for each, slope in reversed(list(zip(self.all, slopes))):
            total = (total * 1.0 + (each * slope).sum())
        return total


SHAPES = (64, 32), (128,), (16, 16), (3,)


def slopes(rank, step=0):
    return [(torch.arange(torch.Size(shape).numel()).reshape(shape) % 8) * 2.0 ** index
            + 16.0 * rank + step for index, shape in enumerate(SHAPES)]


def mean(step=0):
    return [sum(parts) / SIZE for parts in zip(*(slopes(rank, step) for rank in range(SIZE)))]


def hooked(state, dtype=torch.float32):
    # Buckets so small that they are cut anew after the first step.
    ddp = torch.nn.parallel.DistributedDataParallel(Slopes(SHAPES, dtype), bucket_cap_mb=0.002)
    ddp.register_comm_hook(state, hooks.compress_hook)
    return ddp


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("compress", ["none", "fp16", "bf16"])
def test_dense_schemes_give_the_mean(compress, dtype):
    state = hooks.CompressState(compress)
    ddp = hooked(state, dtype)
    for step in range(3):
        ddp.zero_grad()
        ddp(slopes(RANK, step)).backward()
        for each, wanted in zip(ddp.module.all, mean(step)):
            assert torch.allclose(each.grad.double(), wanted.double(), rtol=2.0 ** -7)
            if dtype is not torch.bfloat16 and compress == "none" and SIZE in (1, 2, 4):
                assert torch.equal(each.grad, wanted.to(dtype))
    state.close()


@pytest.mark.parametrize("compress", ["topk:density=0.1", "onebit", "randomk:density=0.1"])
def test_what_is_held_back_follows_its_parameter(compress):
    """The law: what went out and what is held back are the sum of all gradients."""
    state = hooks.CompressState(compress)
    ddp = hooked(state)
    names = [name for name, _ in ddp.module.named_parameters()]
    sent = [torch.zeros(shape) for shape in SHAPES]
    steps = 5
    for step in range(steps):
        ddp.zero_grad()
        ddp(slopes(RANK, step)).backward()
        for total, each in zip(sent, ddp.module.all):
            total += each.grad
        held = state.state(ddp.module)
        assert list(held) == names
        for index, name in enumerate(names):
            wanted = sum(mean(turn)[index] for turn in range(step + 1))
            back = torch.tensor(numpy.asarray(WORLD.allreduce(held[name]["error"])) / SIZE)
            if "owner_error" in held[name]:
                back = back + torch.tensor(held[name]["owner_error"])
            assert torch.allclose(sent[index].reshape(-1) + back, wanted.reshape(-1), rtol=1e-4,
                                  atol=1e-2)
    # A restart goes on where this one ends.
    restarted = hooks.CompressState(compress)
    restarted.load(ddp.module, held)
    again = hooked(restarted)
    for mine, other in zip(again.module.parameters(), ddp.module.parameters()):
        other.data.copy_(mine.data)
    state.close()
    restarted.close()


def test_powersgd_of_low_rank_matrices_is_exact():
    state = hooks.CompressState("powersgd:rank=2")
    model = torch.nn.parallel.DistributedDataParallel(Slopes([(64, 64)]))
    model.register_comm_hook(state, hooks.compress_hook)
    left, right = torch.arange(64.0)[:, None] % 5 + RANK, torch.arange(64.0)[None] % 3 + 1
    everyone = sum((torch.arange(64.0)[:, None] % 5 + rank) @ right for rank in range(SIZE)) / SIZE
    for _ in range(4):
        model.zero_grad()
        model([left @ right]).backward()
    assert torch.allclose(model.module.all[0].grad, everyone, rtol=1e-4)
    state.close()


def test_nan_is_an_error_on_all_ranks():
    state = hooks.CompressState("topk:density=0.1")
    ddp = hooked(state)
    bad = slopes(RANK)
    if RANK == SIZE - 1:
        bad[0][0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="topk"):
        ddp(bad).backward()
    state.close()


def test_a_communicator_of_other_ranks():
    with pytest.raises(ArgumentError, match="unknown|choose"):
        hooks.CompressState("zip")
    if SIZE > 1:
        state = hooks.CompressState("none", hpccoll.Comm(MPI.COMM_SELF))
        with pytest.raises(ArgumentError, match=f"1 ranks.*{SIZE}"):
            state.check(torch.distributed.get_world_size())
        state.close()
