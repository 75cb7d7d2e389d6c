"""Train a network on scikit-learn's digits, with gradients that are compressed on their way.

    mpiexec -n 4 python examples/train_compressed.py --compress topk:density=0.05

Without a compressor gradients travel as they are; ``hpccoll.training.compress`` has the names of
all. Every rank trains on its own images; the optimizer averages gradients over ranks while the
backward pass computes. Needs pip install -e '.[torch]' scikit-learn.
"""
import argparse
import sys

import torch
from sklearn.datasets import load_digits

import hpccoll.torch.horovod as hvd
from hpccoll.training.compress import parse

parser = argparse.ArgumentParser()
parser.add_argument("--compress", default="none", help="such as bf16, onebit, powersgd:rank=4")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--least", type=float, default=0.94, help="least accuracy")
options = parser.parse_args()
try:
    parse(options.compress)
except ValueError as error:
    parser.error(str(error))

hvd.init()
torch.manual_seed(1)
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
order = torch.randperm(len(images))
train, test = order[:1500], order[1500:]
mine = train[hvd.rank()::hvd.size()]

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5),
                                     model.named_parameters(), compression=options.compress)
for _ in range(options.steps):
    batch = mine[torch.randint(len(mine), (128 // hvd.size() + 1,))]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()

right = (model(images[test]).argmax(1) == labels[test]).float().mean()
accuracy = hvd.allreduce(right).item()
if hvd.rank() == 0:
    print(f"{hvd.size()} rank{'s' * (hvd.size() > 1)}, "
          f"{options.compress}: {accuracy:.1%} of digits right "
          f"after {options.steps} steps")
hvd.shutdown()
if accuracy < options.least:
    sys.exit(f"expected at least {options.least:.0%}")
