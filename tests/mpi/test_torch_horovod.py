"""Horovod's functions on real ranks: exact values that differ between ranks, and derivatives."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, CommunicatorError, ExchangeMismatch

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
pytestmark = pytest.mark.mpi
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
NUMBERS = *FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
ANYTHING = *NUMBERS, torch.bool, torch.complex64


@pytest.fixture(autouse=True)
def started():
    hvd.init()
    yield
    hvd.shutdown()


def mine(*shape, rank=None, dtype=torch.float32):
    """Small whole numbers, different on every rank and at every place."""
    rank = hvd.rank() if rank is None else rank
    count = int(numpy.prod(shape))
    return ((torch.arange(count) * 3 + 5 * rank) % 11).reshape(shape).to(dtype)


def everyone(*shape, dtype=torch.float32):
    return torch.stack([mine(*shape, rank=rank, dtype=dtype) for rank in range(hvd.size())])


def test_ranks_are_those_of_mpi():
    world = MPI.COMM_WORLD
    assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
    assert (hvd.local_rank(), hvd.local_size()) == (world.rank, world.size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() and hvd.is_initialized()
    assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    hvd.init()  # again: nothing happens
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(CommunicatorError, match="init"):
        hvd.rank()
    with pytest.raises(CommunicatorError, match="init"):
        hvd.allreduce(torch.ones(1))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])
def test_allreduce(op, dtype):
    every = everyone(2, 7, dtype=dtype)
    whole = every.double()
    wanted = {"Sum": whole.sum(0), "Average": whole.sum(0) / hvd.size(), "Min": whole.amin(0),
              "Max": whole.amax(0), "Product": whole.prod(0)}[op]
    if not dtype.is_floating_point:
        wanted = wanted.floor()
    tensor = mine(2, 7, dtype=dtype)
    before = tensor.clone()
    result = hvd.allreduce(tensor, op=getattr(hvd, op))
    assert result.dtype == dtype and torch.equal(tensor, before)
    assert torch.equal(result, wanted.to(dtype))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_forms_of_allreduce(count):
    wanted = everyone(count).sum(0)
    tensor = mine(count)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert torch.equal(tensor, wanted)
    tensor = mine(count)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="one")
    tensor.fill_(77)
    assert torch.equal(hvd.synchronize(handle), wanted)
    assert hvd.poll(handle) and torch.equal(hvd.synchronize(handle), wanted)
    tensors = [mine(count), mine(2, count)]
    for result in (hvd.grouped_allreduce(tensors, op=hvd.Sum),
                   hvd.synchronize(hvd.grouped_allreduce_async(tensors, average=False)),
                   hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="g")):
        assert torch.equal(result[0], wanted)
        assert torch.equal(result[1], everyone(2, count).sum(0))
    assert result[0] is tensors[0]
    assert hvd.grouped_allreduce([]) == []


def test_a_tensor_that_is_not_contiguous_gets_its_result():
    wanted = everyone(3, 4).sum(0)
    tensor = mine(3, 4).t().contiguous().t()
    assert not tensor.is_contiguous()
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert torch.equal(tensor, wanted)
    tensor = torch.zeros(3, 4).t()
    hvd.broadcast_(tensor.copy_(mine(4, 3)), hvd.size() - 1)
    assert torch.equal(tensor, mine(4, 3, rank=hvd.size() - 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_factors_in_every_form(dtype):
    every = everyone(6, dtype=torch.float64)
    result = hvd.allreduce(mine(6, dtype=dtype), op=hvd.Sum, prescale_factor=2,
                           postscale_factor=0.5)
    assert torch.equal(result, every.sum(0).to(dtype))
    factors = {"op": hvd.Max, "prescale_factor": -1, "postscale_factor": 2}
    for form in "{}", "{}_", "{}_async", "{}_async_":
        for name, several in ("allreduce", False), ("grouped_allreduce", True):
            tensor = mine(6, dtype=dtype)
            result = getattr(hvd, form.format(name))([tensor] if several else tensor, **factors)
            result = result.wait() if "async" in form else result
            assert torch.equal(result[0] if several else result, -2 * every.amin(0).to(dtype))


@pytest.mark.parametrize("dtype", ANYTHING, ids=str)
def test_what_only_moves_may_be_of_any_type(dtype):
    rank, size = hvd.rank(), hvd.size()
    rows = [mine(each, 2, rank=each, dtype=dtype) for each in range(size)]  # none on rank 0
    assert torch.equal(hvd.allgather(rows[rank]), torch.cat(rows))
    last = hvd.broadcast(mine(3, dtype=dtype), size - 1)
    assert torch.equal(last, mine(3, rank=size - 1, dtype=dtype))
    # Rank r sends s rows of 10 r + s to rank s.
    sent = [torch.full((each, 2), 10 * rank + each).to(dtype) for each in range(size)]
    result, came = hvd.alltoall(torch.cat(sent), splits=list(range(size)))
    assert came.tolist() == [rank] * size and came.dtype == torch.int32
    assert torch.equal(result, torch.cat([torch.full((rank, 2), 10 * each + rank).to(dtype)
                                          for each in range(size)]))


def test_even_alltoall_and_its_handles():
    rank, size = hvd.rank(), hvd.size()
    tensor = torch.arange(2 * size) + 100 * rank
    wanted = torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * each for each in range(size)])
    assert torch.equal(hvd.alltoall(tensor), wanted)
    assert torch.equal(hvd.synchronize(hvd.alltoall_async(tensor, name="all")), wanted)
    result, came = hvd.alltoall_async(tensor, torch.tensor([2] * size)).wait()
    assert torch.equal(result, wanted) and came.tolist() == [2] * size


@pytest.mark.parametrize("op", ["Sum", "Average", "Max"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_reducescatter(op, rows):
    rank, size = hvd.rank(), hvd.size()
    every = everyone(rows, 3, dtype=torch.float64)
    counts = [rows // size + (each < rows % size) for each in range(size)]
    start, tensor = sum(counts[:rank]), mine(rows, 3)
    for factors, factor in ({}, 1), ({"prescale_factor": -1, "postscale_factor": 2}, -2):
        whole = {"Sum": every.sum(0), "Average": every.sum(0) / size,
                 "Max": every.amax(0) if factor == 1 else every.amin(0)}[op]
        wanted = factor * whole[start:start + counts[rank]].float()
        options = {"op": getattr(hvd, op), **factors}
        assert torch.equal(hvd.reducescatter(tensor, **options), wanted)
        assert torch.equal(hvd.reducescatter_async(tensor, **options).wait(), wanted)
        grouped = hvd.grouped_reducescatter([tensor, 2 * tensor], **options)
        also = hvd.grouped_reducescatter_async([tensor, 2 * tensor], name="g", **options).wait()
        for results in (grouped, also):
            assert torch.equal(results[0], wanted) and torch.equal(results[1], 2 * wanted)


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_sparse_tensors_are_added_up(op):
    rank, size = hvd.rank(), hvd.size()

    def part(of):
        # An index of its own, one that all have, and one that comes twice.
        indices = [[of, size, size + 1, size + 1], [0, 1, 0, 0]]
        return torch.sparse_coo_tensor(indices, [1.0 + of, 2.0, 3.0, 4.0], (size + 2, 2),
                                       check_invariants=True)

    wanted = sum(part(each).to_dense() for each in range(size))
    if op == "Average":
        wanted = wanted / size
    handle = hvd.sparse_allreduce_async(part(rank), name="s", op=getattr(hvd, op))
    result = handle()
    assert result.is_sparse and torch.equal(result.to_dense(), wanted)
    assert torch.equal(hvd.synchronize(handle).to_dense(), wanted)
    nothing = torch.sparse_coo_tensor(size=(5, 2), check_invariants=True)
    assert hvd.sparse_allreduce_async(nothing).wait()._nnz() == 0


def test_reductions_are_found_by_their_names():
    order = range(5) if hvd.rank() % 2 else range(4, -1, -1)
    handles = {index: hvd.allreduce_async(mine(3) + index, op=hvd.Sum, name=f"x{index}")
               for index in order}
    for index, handle in handles.items():
        assert torch.equal(handle.wait(), everyone(3).sum(0) + index * hvd.size())


def test_ranks_that_run_out_of_data():
    rank, size = hvd.rank(), hvd.size()
    for step in range(rank + 1):  # the last rank has most
        total = hvd.allreduce(mine(4), op=hvd.Sum, name=f"step {step}")
        assert torch.equal(total, everyone(4)[step:].sum(0))
    assert hvd.join() == size - 1
    assert torch.equal(hvd.allreduce(mine(4), op=hvd.Sum), everyone(4).sum(0))


def test_objects():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    assert hvd.allgather_object(("a" * rank, rank)) == [("a" * each, each) for each in range(size)]


# -- derivatives ------------------------------------------------------------------------------
def gradient(call, *shape):
    """Of the sum of all ranks' weighted results, by what this rank puts in."""
    tensor = mine(*shape).requires_grad_()
    result = call(tensor)
    weights = mine(*result.shape) + 1
    (result * weights).sum().backward()
    return tensor.grad


def test_derivatives_of_reductions():
    """With Horovod's factors: those of its own tests of gradients."""
    size = hvd.size()
    weights = everyone(7) + 1
    assert torch.equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), 7), weights.sum(0))
    assert torch.equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2,
                                                        postscale_factor=4), 7),
                       8 * weights.sum(0))
    mean = gradient(lambda x: hvd.grouped_allreduce([x, x])[1], 7)
    assert torch.equal(mean, weights.sum(0) / size)
    rows = [7 // size + (each < 7 % size) for each in range(size)]
    wanted = torch.cat([mine(each, rank=of) + 1 for of, each in enumerate(rows)])
    assert torch.equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), 7),
                       wanted * size)
    assert torch.equal(gradient(hvd.reducescatter, 7), wanted)
    with pytest.raises(ArgumentError, match="derivative"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max), 7)


def test_derivatives_of_moves():
    rank, size = hvd.rank(), hvd.size()
    total = sum(each + 1 for each in range(size))
    start = sum(each + 1 for each in range(rank))
    weights = (everyone(total, 2) + 1).sum(0) / size
    assert torch.equal(gradient(hvd.allgather, rank + 1, 2), weights[start:start + rank + 1])
    wanted = (everyone(5) + 1).sum(0) / size * (rank == size - 1)
    assert torch.equal(gradient(lambda x: hvd.broadcast(x, size - 1), 5), wanted)
    # Row s of rank r becomes row r of rank s, and so goes the derivative.
    wanted = torch.stack([(mine(size, 3, rank=each) + 1)[rank] for each in range(size)])
    splits = [1] * size
    assert torch.equal(gradient(lambda x: hvd.alltoall(x, splits)[0], size, 3), wanted)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2)])
def test_batches_are_normalised_over_all_ranks(shape):
    rank, size = hvd.rank(), hvd.size()
    kind = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}[len(shape)]
    ours, alone = (make(5, momentum=0.3, dtype=torch.float64) for make in
                   (hvd.SyncBatchNorm, kind))
    counts = [each + 2 for each in range(size)]
    torch.manual_seed(1)
    parts = torch.randn(sum(counts), *shape, dtype=torch.float64).split(counts)
    weights = torch.randn(sum(counts), *shape, dtype=torch.float64).split(counts)
    for _ in range(2):
        mine, whole = parts[rank].clone().requires_grad_(), torch.cat(parts).requires_grad_()
        result, wanted = ours(mine), alone(whole)
        (result * weights[rank]).sum().backward()
        (wanted * torch.cat(weights)).sum().backward()
    assert torch.allclose(result, wanted.split(counts)[rank])
    assert torch.allclose(mine.grad, whole.grad.split(counts)[rank])
    assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), alone.weight.grad)
    for name, value in alone.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value)
    assert torch.allclose(ours.eval()(parts[0]), alone.eval()(parts[0]))
    with pytest.raises(ArgumentError, match="channels"):
        ours(torch.ones(5))


# -- process sets -----------------------------------------------------------------------------
def test_process_sets():
    rank, size = hvd.rank(), hvd.size()
    first = hvd.add_process_set([0])
    backwards = hvd.add_process_set(hvd.ProcessSet(range(size - 1, -1, -1)))
    assert (first.process_set_id, backwards.process_set_id) == (1, 2)
    assert first.included() == (rank == 0) and backwards.rank() == size - 1 - rank
    if first.included():
        assert torch.equal(hvd.allreduce(mine(3), op=hvd.Sum, process_set=first), mine(3))
    else:
        with pytest.raises(CommunicatorError, match="not in"):
            hvd.allreduce(mine(3), process_set=first)
    gathered = hvd.allgather(torch.tensor([rank]), process_set=backwards)
    assert gathered.tolist() == list(range(size - 1, -1, -1))
    assert hvd.remove_process_set(backwards) and not hvd.remove_process_set(backwards)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(CommunicatorError, match="added"):
        hvd.allgather(torch.ones(1), process_set=backwards)


def test_roots_are_global_ranks():
    """In a process set too; and ranks outside of it make their steps alone."""
    rank, size = hvd.rank(), hvd.size()
    last = hvd.add_process_set(hvd.ProcessSet(range(size - 1, size // 2 - 1, -1)))
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), process_set=last)
    with torch.no_grad():
        model.weight.fill_(rank)
    if last.included():
        root = size // 2
        assert hvd.broadcast(torch.tensor([rank]), root, process_set=last).item() == root
        assert hvd.broadcast_object(rank, root, process_set=last) == root
        hvd.broadcast_parameters(model.state_dict(), root, process_set=last)
        assert (model.weight == root).all()
        for call in (hvd.broadcast, hvd.broadcast_object) if root else ():
            with pytest.raises(hvd.HorovodInternalError, match="ranks"):
                call(torch.ones(1), 0, process_set=last)
    model(torch.full((1, 2), float(rank))).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    wanted = sum(last.ranks) / len(last.ranks) if last.included() else rank
    assert (model.weight.grad == wanted).all()
    assert hvd.remove_process_set(last)


def test_process_sets_from_communicators():
    rank, size = hvd.rank(), hvd.size()
    halves = MPI.COMM_WORLD.Split(rank % 2, rank)
    half = hvd.add_process_set(hvd.ProcessSet(halves))
    ranks = [each for each in range(size) if each % 2 == rank % 2]
    assert half.ranks == ranks
    assert hvd.allgather(torch.tensor([rank]), process_set=half).tolist() == ranks
    hvd.shutdown()
    halves.Free()


# -- what goes wrong --------------------------------------------------------------------------
def test_disagreement_is_an_error_on_all_ranks():
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    odd = hvd.rank() == hvd.size() - 1
    calls = [lambda: hvd.allreduce(torch.ones(3 + odd), name="x"),
             lambda: hvd.allreduce(torch.ones(3).to(torch.float64 if odd else torch.float32),
                                   name="y"),
             lambda: hvd.allreduce(torch.ones(3), op=hvd.Max if odd else hvd.Sum, name="z"),
             lambda: hvd.allgather(torch.ones(2, 3 + odd)),
             lambda: hvd.allgather(torch.ones(3) if odd else torch.tensor(1.0)),
             lambda: hvd.broadcast(torch.ones(2), int(odd)),
             lambda: hvd.alltoall(torch.ones(hvd.size()), [1] * (hvd.size() - odd)),
             lambda: hvd.broadcast_parameters({"w": torch.ones(2 + odd)}),
             lambda: hvd.add_process_set([0, 1] if odd else [0])]
    for call in calls:
        with pytest.raises((ExchangeMismatch, ArgumentError), match=str(hvd.size() - 1)):
            call()
    # Nothing is left behind.
    assert torch.equal(hvd.allreduce(mine(3), op=hvd.Sum), everyone(3).sum(0))


@pytest.mark.parametrize("call, problem", [
    (lambda: hvd.allreduce(torch.ones(1), op="mean"), "unknown"),
    (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "alias"),
    (lambda: hvd.allgather(torch.tensor(1.0)), "dimension"),
    (lambda: hvd.broadcast(torch.ones(1), 99), "99"),
    (lambda: hvd.alltoall(torch.ones(99), [7] * hvd.size()), "99 rows"),
    (lambda: hvd.allreduce_(torch.ones(1).to_sparse()), "sparse"),
    (lambda: hvd.sparse_allreduce_async(torch.ones(1)), "COO"),
    (lambda: hvd.sparse_allreduce_async(torch.ones(1).to_sparse(), op=hvd.Max), "max"),
    (lambda: hvd.broadcast_parameters(7), "int"),
    (lambda: hvd.add_process_set([0, 0]), "duplicate"),
    (lambda: hvd.add_process_set([99]), "99"),
])
def test_arguments_that_make_no_sense(call, problem):
    with pytest.raises(ArgumentError, match=problem):
        call()
