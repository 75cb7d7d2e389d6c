"""Train a small network to continue text, on the documentation that Python ships.

    mpiexec -n 4 python examples/train_characters.py

The text is that of docstrings of the standard library. FSDP2 (fully_shard) cuts weights, gradients
and the optimizer's state over the ranks; gradients are clipped by their norm over all of them.
Needs PyTorch 2.6 or newer: pip install -e '.[torch]'.
"""
import argparse
import ast
import inspect
import sys
import tokenize

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hpccoll.torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()


def docstrings():
    """The documentation of a module, its functions and classes, as one text."""
    with tokenize.open(inspect.getsourcefile(argparse)) as file:
        nodes = ast.walk(ast.parse(file.read()))
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    return "\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds))


class Model(torch.nn.Module):
    """The next character from the 16 before it."""

    def __init__(self, letters):
        super().__init__()
        self.table = torch.nn.Embedding(letters, 24)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16 * 24, 128), torch.nn.Tanh(),
                                          torch.nn.Linear(128, letters))

    def forward(self, before):
        return self.layers(self.table(before).flatten(1))


hpccoll.torch.init_process_group()
rank, size = distributed.get_rank(), distributed.get_world_size()
text = docstrings()
letters = sorted(set(text))
codes = torch.tensor([letters.index(each) for each in text])
torch.manual_seed(0)
model = Model(len(letters))  # the same on every rank, until it is cut
mesh = init_device_mesh("cpu", (size,))
for module in (model.table, model.layers, model):
    fully_shard(module, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
torch.manual_seed(rank)  # other pieces of text on every rank
losses = []
for _ in range(options.steps):
    starts = torch.randint(len(codes) - 16, (64,))
    pieces = codes[starts[:, None] + torch.arange(17)]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(pieces[:, :16]), pieces[:, 16])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    mean = loss.detach()
    distributed.all_reduce(mean, distributed.ReduceOp.AVG)
    losses.append(mean.item())

if rank == 0:
    print(f"{size} rank{'s' * (size > 1)}: "
          f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} "
          f"after {options.steps} steps on {len(text)} characters")
distributed.destroy_process_group()
if not losses[-1] < 0.8 * losses[0]:
    sys.exit("the model has not learned")
