"""Faults that a GPU has shown, as cases for two ranks.

    PYTHONPATH=.:tests mpiexec -n 2 python -m gpu.rank_cases NAME    the ranks may share a GPU

A case raises ``AssertionError`` where it is wrong. ``tests/gpu/test_cases.py`` starts all of them
where there is a GPU; ``tests/mpi/test_gpu_cases.py`` runs those of CuPy on the double.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.cuda import registered
from hpccoll.errors import BufferArgumentError, HpccollError

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


def community() -> Any:
    """Return a communicator of its own."""
    return hpccoll.Comm(MPI.Intracomm(WORLD.Dup()))


# -- CuPy ----------------------------------------------------------------------------------------
def messages(cupy: Any) -> None:
    """Messages of device memory beside the collectives: few elements, and many."""
    comm, right, left = community(), (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (10, 100_003):
        x, y = cupy.asarray(numpy.full(count, RANK + 1.0)), cupy.asarray(numpy.zeros(count))
        comm.Sendrecv(x, right, 0, y, left, 0)
        assert (cupy.asnumpy(y) == left + 1).all()
        if RANK == 0:
            comm.Send(x, 1)
        elif RANK == 1:
            comm.Recv(y, 0)
            assert (cupy.asnumpy(y) == 1).all()
    comm.Free()


def small_arrays(cupy: Any) -> None:
    """Repeated calls of each way, each on values of its own."""
    comm = community()
    for count in (2, 1024, 1 << 18):
        x = cupy.empty(count, "f4")
        for name in ("auto", "native", "ring"):
            with comm.using(**({} if name == "auto" else {"allreduce": name})):
                for turn in range(5):
                    x[...] = cupy.asarray(numpy.full(count, RANK + turn, "f4"))
                    comm.Allreduce(MPI.IN_PLACE, x)
                    wanted = SIZE * turn + SIZE * (SIZE - 1) // 2
                    assert (cupy.asnumpy(x) == wanted).all(), name
    comm.Free()


def scratch(cupy: Any, count: int = 32 << 20, segment_bytes: str = "32M") -> None:
    """A registered call that needs more scratch memory than there is: cut, and not staged."""
    comm, found, finish = community(), [], registered.RegisteredCall.finish
    x = comm.empty(count, "f4", xp=cupy)
    registered.RegisteredCall.finish = lambda self: (found.append(self), finish(self))
    try:
        with comm.using(allreduce="allpairs", segment_bytes=segment_bytes):
            x[...] = cupy.asarray(numpy.full(count, RANK + 1, "f4"))
            comm.Allreduce(MPI.IN_PLACE, x)
    finally:
        registered.RegisteredCall.finish = finish
    assert (cupy.asnumpy(x) == SIZE * (SIZE + 1) // 2).all()
    assert len(found) == 1, "staged"
    comm.Free()


def captured(cupy: Any) -> None:
    """A call on a captured stream raises, and the stream works afterwards."""
    comm, x, stream = community(), cupy.empty(16, "f4"), cupy.cuda.Stream(non_blocking=True)
    comm.Allreduce(numpy.ones(1), numpy.ones(1))
    with stream:
        x[...] = cupy.asarray(numpy.full(16, RANK, "f4"))
        stream.begin_capture()
        raised = ""
        try:
            comm.Allreduce(MPI.IN_PLACE, x)
        except BufferArgumentError as error:
            raised = str(error)
        stream.end_capture()
        assert "capture" in raised
        comm.Allreduce(MPI.IN_PLACE, x)
        assert (cupy.asnumpy(x) == SIZE * (SIZE - 1) // 2).all()
    comm.Free()


def nccl_shared_gpu(cupy: Any) -> None:
    """NCCL between ranks that share a GPU."""
    comm = community()
    with comm.using(allreduce="nccl"):
        x = cupy.asarray(numpy.ones(1000, "f4"))
        comm.Allreduce(MPI.IN_PLACE, x)
        assert (cupy.asnumpy(x) == SIZE).all()
    comm.Free()


def nccl_last_call(cupy: Any) -> None:
    """A rank misses the last queued call: the other one hears of it in ``Free`` at the latest."""
    comm, raised = community(), ""
    stream = cupy.cuda.Stream(non_blocking=True)
    with comm.using(allreduce="nccl"), stream:
        x = cupy.asarray(numpy.ones(1000, "f4"))
        comm.Allreduce(MPI.IN_PLACE, x)
        stream.synchronize()
        try:
            if RANK == 0:
                comm.Allreduce(MPI.IN_PLACE, x)
                stream.synchronize()
            else:
                time.sleep(9)  # longer than HPCCOLL_TIMEOUT
            comm.Free()
        except HpccollError as error:
            raised = str(error)
    assert RANK or raised, "rank 0 went on with a wrong value"


# -- PyTorch -------------------------------------------------------------------------------------
def torch_group() -> tuple[Any, Any]:
    """Return PyTorch and its calls, on a GPU, with hpccoll as the process group."""
    import torch
    import torch.distributed as dist

    import hpccoll.torch
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    hpccoll.torch.init_process_group("hpccoll")
    return torch, dist


def torch_side_stream(cupy: Any) -> None:
    """An asynchronous call waits for the stream of its caller, and the caller for the call."""
    torch, dist = torch_group()
    stream = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            x = torch.zeros(1 << 20, device="cuda")
            stream.synchronize()
            torch.cuda._sleep(50_000_000)
            x.fill_(RANK + 1.0)
            dist.all_reduce(x, async_op=True).wait()
            y = x.clone()
        stream.synchronize()
        assert bool((y == SIZE * (SIZE + 1) / 2).all())


def torch_ddp_side_stream(cupy: Any) -> None:
    """DDP that is made and used on a stream of its own has the mean of the gradients."""
    torch, _ = torch_group()

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            torch.cuda._sleep(50_000_000)
            return gradient * 1.0

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(4096, 256, bias=False).cuda())
        for _ in range(5):
            model.zero_grad(set_to_none=True)
            x = torch.full((1, 4096), RANK + 1.0, device="cuda")
            Late.apply(model(x)).sum().backward()
            found = model.module.weight.grad.clone()
            stream.synchronize()
            assert bool((found == (SIZE + 1) / 2).all())


def torch_messages(cupy: Any) -> None:
    """``send`` and ``recv`` of CUDA tensors."""
    torch, dist = torch_group()
    for count in (10, 100_003):
        x = torch.full((count,), 7.0 * (RANK == 0), device="cuda")
        if RANK == 0:
            dist.send(x, 1)
        elif RANK == 1:
            dist.recv(x, 0)
            assert bool((x == 7).all())


def torch_captured(cupy: Any) -> None:
    """A call on a captured stream raises, and the graph runs."""
    torch, dist = torch_group()
    x, y = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    graph, raised = torch.cuda.CUDAGraph(), ""
    with torch.cuda.graph(graph):
        y += x
        try:
            dist.all_reduce(x)
        except Exception as error:
            raised = str(error)
    graph.replay()
    torch.cuda.synchronize()
    assert raised and y[0].item() == 1


def torch_coalesced(cupy: Any) -> None:
    """Coalesced gathers."""
    torch, dist = torch_group()
    outs = [torch.empty(4 * SIZE, device="cuda") for _ in range(2)]
    ins = [torch.ones(4, device="cuda") for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, one in zip(outs, ins):
            dist.all_gather_into_tensor(out, one)
    manager.wait()
    assert all(bool((out == 1).all()) for out in outs)


def torch_bfloat16(cupy: Any) -> None:
    """A tensor of bfloat16 as a buffer of a communicator."""
    import torch
    comm, x = community(), torch.ones(10, dtype=torch.bfloat16, device="cuda")
    comm.Allreduce(MPI.IN_PLACE, x)
    assert bool((x == SIZE).all())
    comm.Free()


def torch_horovod(cupy: Any) -> None:
    """Horovod's names on CUDA tensors."""
    torch, _ = torch_group()
    import hpccoll.torch as hvd
    hvd.init()
    x = torch.full((8,), RANK + 1.0, device="cuda")
    assert bool((hvd.allreduce(x, op=hvd.Sum) == SIZE * (SIZE + 1) / 2).all())
    assert bool((hvd.broadcast(x, 1) == 2).all())
    assert hvd.allgather(x).reshape(SIZE, 8)[:, 0].tolist() == [r + 1.0 for r in range(SIZE)]
    assert hvd.alltoall(x[:2 * SIZE]).numel() == 2 * SIZE
    assert bool((hvd.reducescatter(x, op=hvd.Sum) == SIZE * (SIZE + 1) / 2).all())
    torch.manual_seed(RANK)
    model = torch.nn.Linear(8, 8).cuda()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1),
                                         named_parameters=model.named_parameters())
    model(x).square().sum().backward()
    optimizer.step()
    weights = hvd.allgather(model.weight.detach().reshape(1, -1))
    assert bool((weights == weights[0]).all())


Case = Callable[[Any], None]
#: Cases of CuPy alone.
CUPY: dict[str, Case] = {each.__name__: each for each in (messages, small_arrays, scratch,
                                                          captured)}
#: Cases that need NCCL 2.30, for ranks that share a GPU.
NCCL: dict[str, Case] = {each.__name__: each for each in (nccl_shared_gpu, nccl_last_call)}
#: Cases that need PyTorch with CUDA.
TORCH: dict[str, Case] = {each.__name__: each for each in (
    torch_side_stream, torch_ddp_side_stream, torch_messages, torch_captured, torch_coalesced,
    torch_bfloat16, torch_horovod)}


def main(name: str) -> None:
    """Run one case, and end all ranks if one is wrong."""
    import traceback

    import cupy
    try:
        cupy.cuda.Device(RANK % cupy.cuda.runtime.getDeviceCount()).use()
        {**CUPY, **NCCL, **TORCH}[name](cupy)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    print(f"rank {RANK}: right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
