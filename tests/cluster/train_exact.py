"""What jobs on several hosts run: training whose sums are exact, beside that of one process.

Inputs, weights and rates are short binary fractions, so that two steps of float64 round nothing:
whatever the order of additions, the weights must have the bits of one process that sees all data.
Rank 0 prints the number of ranks, the discovered layout, and each way of training with "equal"
when all ranks found so.
"""

import copy

import torch
from mpi4py import MPI

import hpccoll
import hpccoll.torch
from hpccoll.training import Exchange

STEPS, RATE, SAMPLES = 2, 2 ** -4, 4
comm = hpccoll.Comm(MPI.COMM_WORLD)
rank, size = comm.rank, comm.size
torch.set_num_threads(1)
torch.manual_seed(0)
start = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3)
                            ).double()
for each in start.parameters():
    each.data = torch.randint(-2, 3, each.shape).double() / 4
inputs = torch.randint(-2, 3, (STEPS, size, SAMPLES, 6)).double()
wanted = torch.randint(-2, 3, (STEPS, size, SAMPLES, 3)).double()


def backward(model, x, y):
    model.zero_grad()
    ((model(x) - y).square().sum() / 16).backward()


def change(model):
    with torch.no_grad():
        for each in model.parameters():
            each -= RATE * each.grad


def alone(order):
    model = copy.deepcopy(start)
    for x, y in zip(inputs, wanted):
        backward(model, x[order].flatten(0, 1), y[order].flatten(0, 1))
        for each in model.parameters():
            each.grad /= size
        change(model)
    return list(model.parameters())


def ddp():
    # 500 bytes: a bucket for the parameters of each layer.
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(start), bucket_cap_mb=5e-4)
    for x, y in zip(inputs[:, rank], wanted[:, rank]):
        backward(model, x, y)
        change(model)
    return list(model.parameters())


def exchange(order):
    model = copy.deepcopy(start)
    like = [each.detach().numpy() for each in model.parameters()]
    with Exchange(comm, like, order=order, bucket_bytes=500, first_bucket_bytes=100) as averaging:
        for x, y in zip(inputs[:, rank], wanted[:, rank]):
            backward(model, x, y)
            gradients = [each.grad.numpy() for each in model.parameters()]
            for key in reversed(range(len(gradients))):
                averaging.ready(key, gradients[key])
            averaging.wait()
            change(model)
    return list(model.parameters())


hpccoll.torch.init_process_group()
expected = alone(list(range(size)))
found = {"one process in another order": alone(list(reversed(range(size)))), "DDP": ddp(),
         **{f"Exchange, {order}": exchange(order) for order in ("fixed", "negotiated", "priority")}}
torch.distributed.destroy_process_group()
if rank == 0:
    print(f"{size} ranks, layout {comm.layout}", flush=True)
for title, weights in found.items():
    equal = comm.allreduce(all(map(torch.equal, weights, expected)), MPI.LAND)
    moved = not any(map(torch.equal, weights, start.parameters()))
    if rank == 0:
        print(f"{title}: {'equal' if equal and moved else 'OTHER'}", flush=True)
