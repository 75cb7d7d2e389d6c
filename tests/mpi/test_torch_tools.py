"""The process group under PyTorch's own tools: sparse gradients, its profiler, its compiler."""

import math

import pytest
from mpi.torch_case import (
    THREADS,
    dist,
    gather_single,
    group,  # noqa: F401 - a fixture
    place,
    scatter_single,
    torch,
)
from mpi4py import MPI

from hpccoll.errors import ArgumentTypeError

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("group"), THREADS]


@pytest.mark.long(every=5)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (0, 2)])
def test_sparse_tensors(shape, async_op):
    rank, size = place()
    dense = [torch.arange(1.0 + r, 1 + r + math.prod(shape)).reshape(shape) * (r % 2)
             for r in range(size)]  # those of even ranks are empty
    for sparse_dim in range(1, len(shape) + 1):
        for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
            mine = dense[rank].to_sparse(sparse_dim)
            twice = torch.sparse_coo_tensor(torch.cat([mine.indices()] * 2, 1), torch.cat(
                [mine.values()] * 2), shape, check_invariants=False)  # not coalesced
            work = dist.all_reduce(twice, op, async_op=async_op)
            if work is not None:
                work.wait()
            assert twice.is_sparse and torch.equal(twice.to_dense(), 2 * sum(dense) / divisor)
    with pytest.raises(TypeError, match="sparse"):
        dist.all_reduce(twice, dist.ReduceOp.MAX)
    with pytest.raises(TypeError, match="layout"):
        dist.all_reduce(torch.eye(2).to_sparse_csr())


def test_profiles_name_the_calls():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.barrier()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["hpccoll:all_reduce"] == 2 and counts["hpccoll:barrier"] == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", ["wait", "messages", "backward"])
def test_compiled_programs(program):
    rank, size = place()
    right, left = (rank + 1) % size, (rank - 1) % size

    def wait(tensor):
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor + 1

    def messages(tensor):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor * 1.0, right),
                                            dist.P2POp(dist.irecv, tensor, left)]):
            work.wait()
        return tensor + 1

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))

    def backward(tensor):
        model.zero_grad()
        model(tensor).sum().backward()
        return model.module.weight.grad[0]

    function, wanted = {
        "wait": (wait, sum(range(size)) + 1.0), "messages": (messages, left + 1.0),
        "backward": (backward, (size - 1) / 2)}[program]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        assert torch.allclose(compiled(torch.full((2,), float(rank))), torch.full((2,), wanted))


def calls_on(tensor):
    """Every call with a tensor of 4 elements, on ranks whose number divides it."""
    rank, size = place()
    whole, part, same = torch.zeros(4 * size), torch.zeros(4 // size), torch.zeros(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "async": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "coalesced": lambda: dist.all_reduce_coalesced([tensor, tensor.clone()]),
        "reduce": lambda: dist.reduce(tensor, 0), "broadcast": lambda: dist.broadcast(tensor, 0),
        "gather_single": lambda: gather_single(whole, tensor),
        "all_gather": lambda: dist.all_gather(list(whole.chunk(size)), tensor),
        "into": lambda: dist.all_gather([tensor] * size, same),
        "gather": lambda: dist.gather(tensor, list(whole.chunk(size)) if rank == 0 else None),
        "scatter": lambda: dist.scatter(*((same, [tensor] * size) if rank == 0 else (tensor,))),
        "scatter_single": lambda: scatter_single(part, tensor),
        "reduce_scatter": lambda: dist.reduce_scatter(same, [tensor] * size),
        "all_to_all_single": lambda: dist.all_to_all_single(same, tensor),
        "all_to_all": lambda: dist.all_to_all(list(whole.chunk(size)), [tensor] * size)}
    messages = {"send": lambda: dist.send(tensor, (rank + 1) % size),
                "recv": lambda: dist.recv(tensor, (rank - 1) % size)}
    return calls | messages if size > 1 else calls


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.skipif(4 % MPI.COMM_WORLD.size != 0, reason="4 elements")
def test_tensors_without_memory_are_named_before_any_message():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        fake = torch.ones(4)
    for call in calls_on(fake).values():
        with pytest.raises(ArgumentTypeError, match="FakeTensor of torch.float32.*no memory"):
            call()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the group still works
    assert tensor == place()[1]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.skipif(4 % MPI.COMM_WORLD.size != 0, reason="4 elements")
def test_results_of_functional_collectives_are_waited_for():
    rank, size = place()
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    for name in calls_on(None):
        pending = functional.all_reduce(torch.full((4,), rank + 1.0), "sum", dist.group.WORLD)
        if name in ("send", "recv"):
            right = dist.isend(pending, (rank + 1) % size)
            dist.recv(pending, (rank - 1) % size)
            right.wait()
        else:
            calls_on(pending)[name]()
        if name in ("all_reduce", "async", "broadcast", "send", "recv"):
            total = size * (size + 1) / 2
            assert (pending + 0).tolist() == [total * (size if "a" == name[0] else 1)] * 4
