"""Train a network on scikit-learn's handwritten digits, data-parallel with PyTorch's DDP.

    mpiexec -n 2 python examples/train_ddp.py

Every rank trains on a part of the digits; DDP averages the gradients over all ranks, on hpccoll.
No variable is set, no torchrun is needed. Needs pip install -e '.[torch]' scikit-learn.
"""
import sys

import torch
from sklearn.datasets import load_digits
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import hpccoll.torch

EPOCHS, BATCH = 30, 96  # digits of a step, on all ranks together
torch.set_num_threads(1)
torch.manual_seed(0)
hpccoll.torch.init_process_group()
rank, size = distributed.get_rank(), distributed.get_world_size()

pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits))  # the same on every rank
pixels = torch.tensor(pixels, dtype=torch.float32)[order] / 16
digits = torch.tensor(digits)[order]
train, test = slice(0, 1437), slice(1437, None)

network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for _ in range(EPOCHS):
    for batch in torch.randperm(1437)[:1437 // BATCH * BATCH].split(BATCH):
        mine = batch[rank::size]
        loss = torch.nn.functional.cross_entropy(model(pixels[train][mine]), digits[train][mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

right = (network(pixels[test]).argmax(1) == digits[test]).float().mean()
distributed.all_reduce(right, distributed.ReduceOp.MIN)  # the same network on every rank
if rank == 0:
    print(f"{size} rank{'s' * (size > 1)}: "
          f"{100 * right:.1f} % of {len(digits[test])} new digits are recognised")
distributed.destroy_process_group()
if right < 0.95:
    sys.exit("it should be 95 % or more")
