"""Training gives the losses of the same training on Gloo, in the same processes."""

import copy

import pytest
from mpi.torch_case import THREADS, dist, gloo, group, place, torch

# torch warns of its own parts.
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("group"), THREADS, *(
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in (
        "DeprecationWarning", "FutureWarning", "UserWarning"))]
STEPS = 4


def network(width=16):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(),
                               torch.nn.Linear(width, width), torch.nn.Tanh(),
                               torch.nn.Linear(width, 1))


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(12, 8, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def losses(model, optimizer, steps=STEPS):
    rank, _ = place()
    seen = []
    for step in range(steps):
        x, y = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return torch.tensor(seen)


def same(make, group, gloo, rtol=1e-5):
    """Train what ``make(group)`` returns on both; the losses are the same."""
    ours, theirs = (losses(*make(each)) for each in (group, gloo))
    assert torch.allclose(ours, theirs, rtol=rtol, atol=1e-7)
    assert ours[-1] != ours[0]


def sgd(model):
    return model, torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize("options", [
    {}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0005}, {"static_graph": True},
    {"find_unused_parameters": True}], ids=str)
def test_ddp(group, gloo, options):
    same(lambda each: sgd(torch.nn.parallel.DistributedDataParallel(
        network(), process_group=each, **options)), group, gloo)


def test_no_sync(group, gloo):
    rank, _ = place()
    ends = []
    for each in (group, gloo):
        model = torch.nn.parallel.DistributedDataParallel(network(), process_group=each)
        x, y = batch(0, rank)
        with model.no_sync():
            torch.nn.functional.mse_loss(model(x), y).backward()
        own = [parameter.grad.clone() for parameter in model.parameters()]
        x, y = batch(1, rank)
        torch.nn.functional.mse_loss(model(x), y).backward()
        ends.append([own, [parameter.grad for parameter in model.parameters()]])
    for (own, ours), (alone, theirs) in [ends]:
        assert all(map(torch.equal, own, alone))  # nothing has travelled
        assert all(torch.allclose(*both, rtol=1e-5, atol=1e-7) for both in zip(ours, theirs))


def test_ddp_hooks(group, gloo):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def make(each, hook, state=None):
        model = torch.nn.parallel.DistributedDataParallel(network(), process_group=each)
        model.register_comm_hook(state or each, hook)
        return sgd(model)

    same(lambda each: make(each, default_hooks.allreduce_hook), group, gloo)
    # Ours rounds a sum of 16-bit floats once, Gloo after every term.
    same(lambda each: make(each, default_hooks.fp16_compress_hook), group, gloo, rtol=1e-3)
    same(lambda each: make(each, powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(
        each, start_powerSGD_iter=2)), group, gloo)


def test_sync_batch_norm_runs(group):
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(
        torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)), group)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in model)


@pytest.mark.parametrize("divide", [True, False])
def test_join(group, gloo, divide):
    from torch.distributed.algorithms.join import Join

    rank, size = place()
    ends = []
    for each in (group, gloo):
        model = torch.nn.parallel.DistributedDataParallel(network(), process_group=each)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Join([model], divide_by_initial_world_size=divide):
            for step in range(2 + rank):  # uneven data
                x, y = batch(step, rank)
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)


def test_zero_redundancy_optimizer(group, gloo):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(each):
        model = torch.nn.parallel.DistributedDataParallel(network(), process_group=each)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam,
                                              process_group=each, lr=0.05)

    same(make, group, gloo)


def mesh_of(each):
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(each, "cpu")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_first_fully_sharded(group, gloo):
    """It frees what it has gathered, and makes room for it again."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    same(lambda each: sgd(fsdp.FullyShardedDataParallel(
        network(), process_group=each, device_id=torch.device("cpu"))), group, gloo)


@pytest.mark.parametrize("registered", [False, True])
def test_fully_sharded(group, gloo, registered):
    fsdp = pytest.importorskip("torch.distributed.fsdp")

    def make(each):
        model, mesh = network(), mesh_of(each)
        for layer in model[0], model[2]:
            fsdp.fully_shard(layer, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        if registered and each is group:
            ask = getattr(model, "set_allocate_memory_from_process_group_for_comm", None)
            if ask is None:
                pytest.skip("this version cannot ask for it")
            ask(True)
        return sgd(model)

    same(make, group, gloo)


def sharded_and_alone(group):
    """A model cut by FSDP2, the same one whole, and the same mean gradients in both."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    rank, size = place()
    model, alone = network(), network()
    fsdp.fully_shard(model, mesh=mesh_of(group))
    mse = torch.nn.functional.mse_loss
    x, y = batch(0, rank)
    mse(model(x), y).backward()
    x, y = (torch.cat(each) for each in zip(*(batch(0, other) for other in range(size))))
    mse(alone(x), y).backward()
    return model, alone


@pytest.mark.long(every=5)
@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("limit", [0.05, 1e9])
def test_clipping_of_sharded_gradients(group, order, limit):
    models = sharded_and_alone(group)
    # PyTorch has no infinity norm of an empty part, as all ranks but one have of the last bias.
    norm, wanted = (torch.nn.utils.clip_grad_norm_(
        each[:3].parameters() if order == float("inf") else each.parameters(), limit, order)
        for each in models)
    norm = norm.full_tensor()
    assert torch.isclose(norm, wanted, rtol=1e-5)
    for each in models:
        torch.optim.SGD(each.parameters(), 1.0).step()
    assert all(torch.allclose(mine.full_tensor(), whole, rtol=1e-5, atol=1e-6)
               for mine, whole in zip(*(each.parameters() for each in models)))


def test_sharded_state_is_put_together_and_cut_anew(group):
    """Whole state on every rank is that of one process, and another model goes on from it."""
    states = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    options = states.StateDictOptions(full_state_dict=True)
    models = model, alone = sharded_and_alone(group)
    optimizers = [torch.optim.Adam(each.parameters(), 0.05) for each in models]
    for optimizer in optimizers:
        optimizer.step()
    ours, theirs = (states.get_state_dict(*each, options=options)
                    for each in zip(models, optimizers))
    for name, value in theirs[0].items():
        assert torch.allclose(ours[0][name], value, rtol=1e-4, atol=1e-6)
    for name, entry in theirs[1]["state"].items():
        assert all(torch.allclose(ours[1]["state"][name][key], value, rtol=1e-4, atol=1e-6)
                   for key, value in entry.items())
    again, _ = sharded_and_alone(group)
    again.zero_grad()  # an optimizer beside gradients is not given state
    resumed = torch.optim.Adam(again.parameters(), 0.05)
    weights, state = copy.deepcopy(ours)  # the numbers of steps are those of the optimizer itself
    states.set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=state,
                          options=options)
    assert torch.equal(losses(model, optimizers[0]), losses(again, resumed))


def test_tensor_parallel(group, gloo):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    rank, size = place()
    x, y = batch(0, 0)
    seen = []
    for each in (group, gloo):
        width = 8 * size
        model = parallelize_module(network(width), mesh_of(each), {
            "0": ColwiseParallel(), "2": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        values = []
        for _ in range(STEPS):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        seen.append(torch.tensor(values))
    assert torch.allclose(*seen, rtol=1e-5, atol=1e-7)


def test_dtensor_and_device_mesh(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = place()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(float(size * 6)).reshape(size * 2, 3)
    tensor = distribute_tensor(whole, mesh["dp"], [Shard(0)])
    assert torch.equal(tensor.full_tensor(), whole)
    assert torch.equal(tensor.redistribute(placements=[Replicate()]).to_local(), whole)
    turned = distribute_tensor(whole.t().contiguous(), mesh["dp"], [Replicate()])
    assert torch.equal((tensor @ turned).full_tensor(), whole @ whole.t())
    moved = distribute_tensor(torch.arange(float(size * size)).reshape(size, size), mesh["dp"],
                              [Shard(0)]).redistribute(placements=[Shard(1)])
    assert torch.equal(moved.to_local().flatten(), torch.arange(size) * size + float(rank))
    assert mesh["tp"].size() == 1 and mesh.get_group("dp").size() == size


def test_pipeline(group):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = place()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(size)]
    whole = torch.nn.Sequential(*copy.deepcopy(layers))
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    loss = torch.nn.functional.mse_loss
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, 4, loss_fn=loss)
    seen = []
    if size == 1:
        schedule.step(x, target=target, losses=seen)
    elif rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=target, losses=seen)
    else:
        schedule.step()
    loss(whole(x), target).backward()
    assert torch.allclose(layers[rank].weight.grad, whole[rank].weight.grad, rtol=1e-4, atol=1e-6)
    if rank == size - 1:
        assert torch.allclose(torch.stack(seen).mean(), loss(whole(x), target))


def test_checkpoint(group, tmp_path_factory):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    rank, size = place()
    made = [str(tmp_path_factory.mktemp("saved"))]
    dist.broadcast_object_list(made, 0)
    mesh = mesh_of(group)
    whole = torch.arange(size * 4.0)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 3}
    checkpoint.save(state, checkpoint_id=made[0])
    loaded = {"weight": distribute_tensor(torch.zeros(size * 4), mesh, [Shard(0)]), "step": 0}
    checkpoint.load(loaded, checkpoint_id=made[0])
    assert isinstance(loaded["weight"], DTensor) and loaded["step"] == 3
    assert torch.equal(loaded["weight"].to_local(), whole[4 * rank:4 * rank + 4])
    dist.barrier()


__all__ = ["gloo", "group"]
