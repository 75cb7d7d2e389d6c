"""Digits are learned with every compressor about as well as with none, in as many steps."""

import functools

import pytest
from mpi4py import MPI

from hpccoll.training import compress

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")
hvd = pytest.importorskip("hpccoll.torch.horovod")
hooks = pytest.importorskip("hpccoll.torch.hooks")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.threads("hpccoll exchange")]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
STEPS = 500
#: Schemes that are no compressors by themselves, or need a word on how strong they are.
TEXTS = {"topk": "topk:density=0.1", "randomk": "randomk:density=0.25", "csc": "csc:density=0.25"}
#: One of each way; what is held back by others, test_scheme_laws compares with a law.
ALWAYS = ("powersgd", "optimizer"), ("onebit", "hook")


@pytest.fixture(scope="module", autouse=True)
def started():
    hvd.init()
    yield
    hvd.shutdown()


@functools.cache
def accuracy(text, way):
    """The share of right answers on 297 images that were not learned from."""
    torch.manual_seed(4)
    images, labels = map(torch.tensor, datasets.load_digits(return_X_y=True))
    images = images.float() / 16
    order = torch.randperm(len(images))
    mine, test = order[:1500][RANK::SIZE], order[1500:]
    model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(),
                                torch.nn.Linear(100, 10))
    # Momentum would be applied to what arrives late, too: error feedback is for plain steps.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state, network = None, model
    if way == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer, compression=text)
    else:
        state = hooks.CompressState(text)
        network = torch.nn.parallel.DistributedDataParallel(model)
        network.register_comm_hook(state, hooks.compress_hook)
    for _ in range(STEPS):
        batch = mine[torch.randint(len(mine), (96 // SIZE,))]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
    if state is None:
        optimizer._gradients.close()
    else:
        state.close()
    return (model(images[test]).argmax(1) == labels[test]).double().mean().item()


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    path = MPI.COMM_WORLD.bcast(str(tmp_path_factory.mktemp("gloo") / "store"))
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=RANK,
                                         world_size=SIZE)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name, way", [
    pytest.param(name, way, marks=[] if (name, way) in ALWAYS else pytest.mark.long)
    for name in compress.names() if name != "none" for way in ("optimizer", "hook")])
def test_within_one_point_of_none(gloo, name, way):
    plain, compressed = accuracy("none", way), accuracy(TEXTS.get(name, name), way)
    assert plain >= 0.97
    assert compressed >= plain - 0.01
