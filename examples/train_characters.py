"""Train a small network to continue text, on the documentation that Python ships.

    mpiexec -n 4 python examples/train_characters.py

The text is that of docstrings of the standard library. The optimizer's state is cut over the ranks
(ZeRO, stage 2), gradients are clipped by their norm over all of them. Needs pip install
-e '.[torch]'.
"""
import argparse
import ast
import inspect
import sys
import tokenize

import torch

import hpccoll.torch.horovod as hvd
from hpccoll.torch.zero import ZeroOptimizer, clip_grad_norm_

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


hvd.init()
text = docstrings()
letters = sorted(set(text))
codes = torch.tensor([letters.index(each) for each in text])
torch.manual_seed(hvd.rank())  # other pieces of text on every rank; weights begin as rank 0's
model = Model(len(letters))
optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=0.003)
losses = []
for _ in range(options.steps):
    starts = torch.randint(len(codes) - 16, (64,))
    pieces = codes[starts[:, None] + torch.arange(17)]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(pieces[:, :16]), pieces[:, 16])
    loss.backward()
    clip_grad_norm_(optimizer, max_norm=1.0)
    optimizer.step()
    losses.append(hvd.allreduce(loss.detach()).item())

if hvd.rank() == 0:
    print(f"{hvd.size()} rank{'s' * (hvd.size() > 1)}: "
          f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} "
          f"after {options.steps} steps on {len(text)} characters")
hvd.shutdown()
if not losses[-1] < 0.8 * losses[0]:
    sys.exit("the model has not learned")
