"""What tests of the process group share: a default group, and Gloo beside it."""

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
#: The default group has these from its first calls until it is destroyed.
THREADS = pytest.mark.threads("hpccoll group", "hpccoll messages of group")


def newer(name, older):
    """A function of ``torch.distributed`` under its newer name, where this version has it."""
    return getattr(dist, name, None) or getattr(dist, older)


gather_single = newer("all_gather_single", "all_gather_into_tensor")
scatter_single = newer("reduce_scatter_single", "reduce_scatter_tensor")


@pytest.fixture(scope="module")
def group():
    """The default process group, for all tests of a module."""
    import hpccoll.torch

    hpccoll.torch.init_process_group()
    torch.set_num_threads(1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def gloo(group):
    """A group of the same ranks on Gloo."""
    return dist.new_group(backend="gloo")


def place():
    """This rank, and the number of ranks."""
    return dist.get_rank(), dist.get_world_size()
