"""The process group on real ranks: every collective, type, operator and kind of tensor."""

import operator
from functools import reduce

import pytest
from mpi.torch_case import THREADS, dist, gather_single, group, place, scatter_single, torch

from hpccoll.errors import ArgumentError

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("group"), THREADS]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TYPES = [*FLOATS, *WHOLE, torch.bool, torch.complex64, torch.complex128]
#: Kinds of tensors, made of a flat one of 12 elements.
KINDS = {
    "flat": lambda t: t, "matrix": lambda t: t.reshape(3, 4),
    "transposed": lambda t: t.reshape(3, 4).t().contiguous().t(),
    "part": lambda t: torch.cat([t, t])[12:], "strided": lambda t: torch.stack([t, t], 1)[:, 0],
    "needing gradients": lambda t: t.requires_grad_() if t.is_floating_point() else t}
SIZES = [0, 1, 7, 40_000]
ASYNC = pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])


def values(rank, count, dtype):
    """Small numbers of a rank, whose sums and products are exact in every type."""
    numbers = (torch.arange(count) + rank) % 3 + 1
    return numbers > 2 if dtype is torch.bool else numbers.to(dtype)


def all_values(count, dtype):
    return [values(rank, count, dtype) for rank in range(place()[1])]


def finish(work, async_op):
    assert (work is not None) is async_op
    if async_op:
        work.wait()
        assert work.is_completed()


FUNCTIONS = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
             "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_reduce(name, dtype):
    rank, _ = place()
    op = getattr(dist.ReduceOp, name)
    if (dtype.is_complex and name != "SUM" or dtype.is_floating_point and name in (
            "BAND", "BOR", "BXOR")):
        with pytest.raises((ValueError, TypeError)):
            dist.all_reduce(torch.ones(2, dtype=dtype), op)
        return
    terms = all_values(5, dtype)
    if dtype is torch.bool:
        wanted = reduce({"SUM": torch.logical_or, "PRODUCT": torch.logical_and,
                         "MIN": torch.logical_and, "MAX": torch.logical_or}.get(
                             name, FUNCTIONS[name]), terms)
    else:
        wanted = reduce(FUNCTIONS[name], terms)
    tensor = terms[rank].clone()
    dist.all_reduce(tensor, op)
    assert torch.equal(tensor, wanted)


@ASYNC
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind, async_op):
    rank, size = place()
    for dtype in torch.float32, torch.bfloat16, torch.int64:
        tensor = KINDS[kind](values(rank, 12, dtype))
        wanted = sum(KINDS[kind](term).detach() for term in all_values(12, dtype))
        finish(dist.all_reduce(tensor, async_op=async_op), async_op)
        assert torch.equal(tensor.detach(), wanted)
        tensor = KINDS[kind](values(rank, 12, dtype))
        finish(dist.broadcast(tensor, size - 1, async_op=async_op), async_op)
        assert torch.equal(tensor.detach(), KINDS[kind](values(size - 1, 12, dtype)).detach())
        tensor = KINDS[kind](values(rank, 12, dtype))
        mine = tensor.detach().clone()
        finish(dist.reduce(tensor, 0, async_op=async_op), async_op)
        assert torch.equal(tensor.detach(), mine if rank else wanted)


@ASYNC
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8],
                         ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_sizes(count, dtype, async_op):
    rank, size = place()
    mine, terms = values(rank, count, dtype), all_values(count, dtype)
    for op, wanted in (dist.ReduceOp.SUM, reduce(operator.add, terms)), (
            dist.ReduceOp.MAX, reduce(torch.maximum, terms)):
        tensor = mine.clone()
        finish(dist.all_reduce(tensor, op, async_op=async_op), async_op)
        assert torch.equal(tensor, wanted)
        tensor = mine.clone()
        finish(dist.reduce(tensor, size - 1, op, async_op=async_op), async_op)
        assert torch.equal(tensor, wanted if rank == size - 1 else mine)
    whole = torch.zeros(size * count, dtype=dtype)
    finish(gather_single(whole, mine, async_op=async_op), async_op)
    assert torch.equal(whole, torch.cat(terms))
    parts = [torch.zeros(count, dtype=dtype) for _ in range(size)]
    finish(dist.all_gather(parts, mine, async_op=async_op), async_op)
    assert all(map(torch.equal, parts, terms))
    parts = [torch.zeros(count, dtype=dtype) for _ in range(size)] if rank == 0 else None
    finish(dist.gather(mine, parts, 0, async_op=async_op), async_op)
    assert rank or all(map(torch.equal, parts, terms))
    out = torch.zeros(count, dtype=dtype)
    finish(dist.scatter(out, terms if rank == size - 1 else None, size - 1, async_op=async_op),
           async_op)
    assert torch.equal(out, mine)
    # What rank r has for rank s is values(r + s).
    blocks = [values(rank + other, count, dtype) for other in range(size)]
    finish(scatter_single(out, torch.cat(blocks), async_op=async_op), async_op)
    assert torch.equal(out, reduce(operator.add, blocks))
    out.zero_()
    finish(dist.reduce_scatter(out, blocks, async_op=async_op), async_op)
    assert torch.equal(out, reduce(operator.add, blocks))
    whole = torch.zeros(size * count, dtype=dtype)
    finish(dist.all_to_all_single(whole, torch.cat(blocks), async_op=async_op), async_op)
    assert torch.equal(whole, torch.cat(blocks))
    parts = [torch.zeros(count, dtype=dtype) for _ in range(size)]
    finish(dist.all_to_all(parts, blocks, async_op=async_op), async_op)
    assert all(map(torch.equal, parts, blocks))
    for given, other in zip([mine, *terms, *blocks], [
            values(rank, count, dtype), *all_values(count, dtype),
            *(values(rank + other, count, dtype) for other in range(size))], strict=True):
        assert torch.equal(given, other)  # inputs are not changed


@ASYNC
def test_parts_of_different_sizes(async_op):
    rank, size = place()
    # Rank r has r rows for each; rank s gets 0, 1, ... rows.
    sent = torch.full((rank * size, 2), float(rank))
    got = torch.full((sum(range(size)), 2), -1.0)
    finish(dist.all_to_all_single(got, sent, list(range(size)), [rank] * size, async_op=async_op),
           async_op)
    wanted = torch.cat([torch.full((other, 2), float(other)) for other in range(size)])
    assert torch.equal(got, wanted)
    parts = [torch.zeros(other + 1) for other in range(size)]
    finish(dist.all_gather(parts, torch.full((rank + 1,), rank + 1.0), async_op=async_op), async_op)
    assert all(torch.equal(part, torch.full((n,), float(n))) for n, part in enumerate(parts, 1))
    out = torch.zeros(rank + 2)
    finish(dist.reduce_scatter(out, [torch.ones(n + 2) for n in range(size)], async_op=async_op),
           async_op)
    assert torch.equal(out, torch.full((rank + 2,), float(size)))


def test_means_and_factors():
    rank, size = place()
    for dtype in FLOATS:
        tensor = torch.full((6,), 2.0 * rank, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert (tensor == size - 1).all()
        out = torch.zeros(2, dtype=dtype)
        source = torch.full((2 * size,), 2.0 * rank, dtype=dtype)
        scatter_single(out, source, dist.ReduceOp.AVG)
        assert (out == size - 1).all()
        half = dist._make_nccl_premul_sum(0.5)
        tensor = torch.full((6,), 2.0, dtype=dtype)
        dist.all_reduce(tensor, half)
        assert (tensor == size).all()
        scatter_single(out, source, half)
        assert (out == sum(range(size))).all()
        assert (source == 2 * rank).all()  # an input is not changed
        for op, total in (dist.ReduceOp.AVG, 2), (half, size):
            tensor = torch.full((6,), 2.0, dtype=dtype)
            dist.reduce(tensor, size - 1, op)  # changes the tensor of the root only
            assert (tensor == (total if rank == size - 1 else 2)).all()
    whole = torch.full((3,), 7 * rank + 1)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    assert (whole == (7 * sum(range(size)) + size) // size).all()


def test_in_place():
    rank, size = place()
    whole = torch.zeros(4 * size)
    mine = whole[4 * rank:4 * rank + 4]
    mine.fill_(rank + 1)
    gather_single(whole, mine)
    assert torch.equal(whole, torch.arange(1.0, size + 1).repeat_interleave(4))
    source = torch.arange(4.0 * size) + rank
    wanted = size * torch.arange(4.0 * size)[:4] + sum(range(size)) + 4 * size * rank
    scatter_single(source[:4], source)
    assert torch.equal(source[:4], wanted)
    tensor = torch.arange(size) + 10 * rank
    dist.all_to_all_single(tensor, tensor)
    assert torch.equal(tensor, rank + 10 * torch.arange(size))


def test_coalesced():
    rank, size = place()
    tensors = [torch.full((n,), rank + 1.0) for n in (3, 0, 5)]
    with dist._coalescing_manager() as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all((tensor == size * (size + 1) / 2).all() for tensor in tensors)
    outs = [torch.zeros(n * size) for n in (1, 4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for n, out in zip((1, 4), outs, strict=True):
            gather_single(out, torch.full((n,), float(rank)))
    manager.wait()
    assert all(torch.equal(out, torch.arange(float(size)).repeat_interleave(n))
               for n, out in zip((1, 4), outs, strict=True))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor == size * size * (size + 1) / 2).all() for tensor in tensors)
    mixed = [torch.ones(3), torch.ones(2, dtype=torch.int32), torch.ones(4)]
    options = dist.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(mixed, options).wait()
    assert all((tensor == size).all() for tensor in mixed)


@pytest.mark.parametrize("eager", [0, 1])
def test_ranks_may_differ_in_what_is_asynchronous(eager):
    rank, size = place()
    for count in 3, 200_000:
        tensor = torch.full((count,), rank + 1.0)
        work = dist.all_reduce(tensor, async_op=rank % 2 == eager)
        if work is not None:
            work.wait()
        assert (tensor == size * (size + 1) / 2).all()


def test_futures():
    _, size = place()
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    double = work.get_future().then(lambda future: 2 * future.value()[0])
    assert torch.equal(double.wait(), torch.full((4,), 2.0 * size))
    assert work.get_future().done() and torch.equal(work.result()[0], tensor)


@pytest.mark.parametrize("call, problem", [
    (lambda: gather_single(torch.ones(3), torch.ones(2)), "3 elements"),
    (lambda: scatter_single(torch.ones(3), torch.ones(2)), "2 elements"),
    (lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5), [5], [5]), "counts"),
    (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0, async_op=True).wait(), "layout"),
    (lambda: dist.all_reduce(torch.ones(2, device="meta")), "device meta"),
    (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "float8_e5m2"),
])
def test_mistakes_are_told_before_anything_is_sent(call, problem):
    if place()[1] == 1 and "counts" in problem:
        pytest.skip("one part is right for one rank")
    with pytest.raises((ValueError, TypeError), match=problem):
        call()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor == place()[1]


#: Methods as hooks and programs call them: without options, or with what stands in them.
DIRECT = {
    "allreduce": lambda g, x, n: g.allreduce(x, op=dist.ReduceOp.SUM),
    "allreduce of a list": lambda g, x, n: g.allreduce([x], dist.ReduceOp.SUM),
    "allreduce by default": lambda g, x, n: g.allreduce([x]),
    "allreduce_coalesced": lambda g, x, n: g.allreduce_coalesced([x]),
    "allgather": lambda g, x, n: g.allgather([torch.empty(n) for _ in range(n)], x.clone()),
    "reduce": lambda g, x, n: g.reduce(x, n - 1, dist.ReduceOp.SUM),
    "reduce_scatter": lambda g, x, n: g.reduce_scatter(x[:1], [*x.clone().split(1)]),
    "broadcast": lambda g, x, n: g.broadcast(x, root=n - 1),
    "broadcast of a list": lambda g, x, n: g.broadcast([x], n - 1),
    "scatter": lambda g, x, n: g.scatter(x[:1], [*x.clone().split(1)] if g.rank() == 0 else [], 0),
    "alltoall_base": lambda g, x, n: g.alltoall_base(x, x.clone(), [], []),
    "barrier": lambda g, x, n: g.barrier()}


@pytest.mark.parametrize("call", DIRECT)
def test_methods_without_options(group, call):
    rank, size = place()
    x = torch.full((size,), rank + 1.0)
    work = DIRECT[call](group, x, size)
    work.wait()
    total, kind = size * (size + 1) / 2, call.partition(" ")[0]
    wanted = {"allreduce": total, "allreduce_coalesced": total, "broadcast": size,
              "reduce": total if rank == size - 1 else rank + 1,
              "reduce_scatter": total, "scatter": 1, "alltoall_base": 1, "barrier": rank + 1}
    got = work.result()[-1] if kind == "allgather" else x
    assert got[0] == wanted.get(kind, size)


def test_arguments_that_a_method_does_not_have(group):
    for given, named in (((dist.ReduceOp.SUM, None, 3), {}), ((), {"root": 0})):
        with pytest.raises(TypeError, match="AllreduceOptions"):
            group.allreduce(torch.ones(1), *given, **named)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_of_the_caller_hold_in_every_thread(mode):
    """The mean divides in place, in whichever thread the call is run."""
    with mode():
        tensors = [torch.full((3,), 2.0) for _ in range(20)]
        works = [dist.all_reduce(each, dist.ReduceOp.AVG, async_op=True) for each in tensors]
    while not works[-1].is_completed():  # runs none of them here
        pass
    for work, tensor in zip(works, tensors):
        work.wait()
        assert (tensor == 2).all()


@pytest.mark.parametrize("dtype, value", [
    (torch.float16, 60000), (torch.int8, 100), (torch.uint8, 200), (torch.int16, 32000),
    (torch.int32, 2 ** 31 - 1)], ids=str)
def test_averages_whose_sum_does_not_fit(dtype, value):
    """In every reduction; the exchange, Horovod's names and JAX divide the sum, as they say."""
    rank, size = place()
    mine = torch.full((6, 2), value, dtype=dtype)
    whole, part, row = mine.clone(), mine[:6 // size].clone(), mine[:1 + rank % 2].clone()
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    dist.reduce(whole, size - 1, dist.ReduceOp.AVG)
    if size in (1, 2, 3):
        scatter_single(part, mine, dist.ReduceOp.AVG)
    dist.reduce_scatter(row, [mine[:1 + r % 2] for r in range(size)], dist.ReduceOp.AVG)
    for found in whole, part, row:
        assert (found == value).all()


def test_all_to_all_with_lists_on_some_ranks():
    """``all_to_all`` and the gathers of lists know the sizes of all ranks."""
    rank, size = place()
    source, got = torch.arange(2.0 * size) + 100 * rank, torch.empty(2 * size)
    wanted = torch.cat([100.0 * r + torch.tensor([2 * rank, 2 * rank + 1]) for r in range(size)])
    for with_lists in [0], range(0, size, 2), range(size), []:
        got.zero_()
        lists = ([2] * size, [2] * size) if rank in with_lists else ()
        dist.all_to_all_single(got, source, *lists)
        assert torch.equal(got, wanted)


LISTS = {
    "gather": lambda out, x, rank: dist.gather(x, out if rank == 0 else None),
    "scatter": lambda out, x, rank: dist.scatter(x, out if rank == 0 else None),
    "all_gather": lambda out, x, rank: dist.all_gather(out, x),
    "reduce_scatter": lambda out, x, rank: dist.reduce_scatter(x, out)}


@pytest.mark.parametrize("call", LISTS)
@pytest.mark.parametrize("shape", [(3, 2), (5,), (2, 2)])
def test_tensors_of_a_list_are_like_the_one_in_their_place(call, shape):
    """The total may be right, as where a last piece is smaller: elements would cross borders."""
    rank, size = place()
    if call in ("gather", "scatter") and rank:
        return  # the root's list is at fault, and the root says so before it sends
    out = [torch.zeros(shape) for _ in range(size)]
    with pytest.raises(ArgumentError, match=r"torch.float32 \(2, 3\)"):
        LISTS[call](out, torch.ones(2, 3), rank)


def test_registered_tensors(group):
    rank, size = place()
    assert group.supports_tensor_alloc("cpu") and not group.supports_tensor_alloc("cuda")
    seen = set()
    for _ in range(5):
        tensor = group.allocate_tensor(3000, dtype=torch.bfloat16, device=torch.device("cpu"))
        seen.add(tensor.data_ptr())
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert (tensor == size * (size + 1) / 2).all()
        del tensor
    assert len(seen) == 1  # given out again
    kept = [group.allocate_tensor(n) for n in (0, 1, 1500, 5000)]
    assert [tensor.numel() for tensor in kept] == [0, 1, 1500, 5000]
    assert len({tensor.data_ptr() for tensor in kept[1:]}) == 3
    with pytest.raises(TypeError, match="registered"):
        group.allocate_tensor(3, device="meta")


__all__ = ["group"]


@pytest.mark.parametrize("backend", ["cpu:hpccoll,cuda:nccl", "cpu:gloo,cuda:hpccoll"])
def test_a_map_of_devices_is_an_error(backend):
    """torch would make one part of it, as it puts only groups in C++ into a map."""
    other = "nccl" if "nccl" in backend else "gloo"
    with pytest.raises(RuntimeError, match=f"drop {other}; .*init_process_group.'{other}'"):
        dist.new_group(backend=backend)


def test_it_serves_gpus_only_where_there_are_some(group):
    """Else torch puts what it gathers on a GPU, as that of a ShardedTensor."""
    devices = ["cpu", "cuda"] if "cuda" in group._devices else ["cpu"]
    assert dist.Backend.backend_capability["hpccoll"] == devices


@pytest.mark.filterwarnings("ignore")
def test_gather_of_a_sharded_tensor():
    sharded = pytest.importorskip("torch.distributed._shard.sharded_tensor")
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    rank, size = place()
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(size)])
    whole = torch.empty(7, 3) if rank == 0 else None
    sharded.ones(spec, 7, 3).gather(0, whole)
    assert whole is None or (whole == 1).all()
