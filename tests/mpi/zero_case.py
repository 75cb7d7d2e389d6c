"""What tests of ZeRO 3 for modules share: a model with everything in it, and its optimizer."""

import pytest
from mpi4py import MPI

from hpccoll.training.shard import Fetching

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
zero = pytest.importorskip("hpccoll.torch.zero")
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
#: Nothing stays whole, nothing is kept for its next use.
STRICT = Fetching(persistent=0, reuse=0)
needs_threads = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE,
                                   reason="needs THREAD_MULTIPLE")


@pytest.fixture
def steady(monkeypatch):
    """Sums have one order."""
    monkeypatch.setenv("HPCCOLL_DETERMINISM", "size")


@pytest.fixture(autouse=True)
def started(request):
    if "steady" in request.fixturenames:
        request.getfixturevalue("steady")
    hvd.init()
    yield
    hvd.shutdown()


class Tower(torch.nn.Module):
    """Tied weights, attention (which takes weights from a module inside), a norm, a parameter."""

    def __init__(self, width=8, words=11):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.place = torch.nn.Parameter(torch.randn(5, width))
        self.attention = torch.nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 19), torch.nn.ReLU(inplace=True),
                                       torch.nn.Linear(19, width))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.place
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm(x)))


def tower(dtype=torch.float32):
    torch.manual_seed(3)
    return Tower().to(dtype)


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def batches(steps=3):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 11, (steps, SIZE, 2, 5), generator=generator)


def cut(model, kind=torch.optim.Adam, params=None, **options):
    return zero.ZeroOptimizer(model.parameters() if params is None else params, kind, stage=3,
                              module=model, **{"fetching": STRICT, "lr": 0.05, **options})


def weights_of(model, optimizer):
    with optimizer.gathered():
        return {name: each.detach().clone() for name, each in model.named_parameters()}


def same(one, another):
    return one.keys() == another.keys() and all(
        torch.equal(one[name], another[name]) for name in one)
