"""Horovod's names on PyTorch."""

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.errors import ArgumentError, CommunicatorError, HpccollError

# The table of Horovod's calls, and torch that is missing
pytest.importorskip("torch")
hvd = pytest.importorskip("hpccoll.torch.horovod")
processes = pytest.importorskip("hpccoll.torch.horovod.processes")
PAGE = Path(__file__).resolve().parents[4] / "docs" / "training" / "horovod.md"


def rows():
    table = PAGE.read_text(encoding="utf-8").split("| `horovod.torch` |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        calls, here = row.split("|")[1:3]
        yield re.findall(r"`(\w+)`", calls), here.strip()


def test_the_page_lists_every_call():
    here = {name for names, has in rows() if has == "yes" for name in names}
    missing = {name for names, has in rows() if has == "missing" for name in names}
    assert here == set(hvd.__all__) and not missing & here
    assert {has for _, has in rows()} == {"yes", "missing"}


@pytest.mark.parametrize("name, arguments", [
    ("allreduce", "tensor average name compression op prescale_factor postscale_factor "
                  "process_set"),
    ("allreduce_async_", "tensor average name op prescale_factor postscale_factor process_set"),
    ("grouped_allreduce", "tensors average name compression op prescale_factor postscale_factor "
                          "process_set"),
    ("sparse_allreduce_async", "tensor name op process_set"),
    ("allgather", "tensor name process_set"), ("broadcast", "tensor root_rank name process_set"),
    ("alltoall", "tensor splits name process_set"),
    ("reducescatter", "tensor op name compression process_set prescale_factor postscale_factor"),
    ("broadcast_object", "obj root_rank name process_set"), ("join", "device"),
    ("DistributedOptimizer", "optimizer named_parameters compression backward_passes_per_step op "
                             "gradient_predivide_factor groups sparse_as_dense process_set")])
def test_arguments_are_those_of_horovod(name, arguments):
    assert list(inspect.signature(getattr(hvd, name)).parameters) == arguments.split()


def test_the_package_has_these_names():
    import hpccoll.torch
    assert all(getattr(hpccoll.torch, name) is getattr(hvd, name) for name in hvd.__all__)
    with pytest.raises(AttributeError, match="elastic"):
        hpccoll.torch.elastic


@pytest.mark.parametrize("compression, problem", [
    ("topkk", "'topkk'.*'topk'"), (object(), "scheme")])
def test_a_mistaken_compression_is_said_at_once(compression, problem):
    """Not in the first backward pass."""
    import torch
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(HpccollError, match=problem):
        hvd.DistributedOptimizer(plain, compression=compression)


@pytest.mark.parametrize("module", ["hpccoll.torch", "hpccoll.torch.horovod"])
def test_torch_is_missing(module):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; import {module}"],
        capture_output=True, text=True, timeout=60, check=False)
    assert "FrameworkError: torch: is not installed" in done.stderr
    assert "pip install 'hpccoll[torch]'" in done.stderr


def test_who_asks_too_early_is_told_a_function_that_there_is(monkeypatch):
    monkeypatch.setattr(processes, "_places", None)
    monkeypatch.setattr(processes.global_process_set, "_comm", None)
    for ask in processes.rank, processes.local_rank:
        with pytest.raises(CommunicatorError, match=r"hpccoll\S+\(\)") as told:
            ask()
        name = re.search(r"call (\S+)\(\)", str(told.value))[1]
        assert pkgutil.resolve_name(name) is processes.init


# What is asked of a reduction, and what factors do to numbers
torch = pytest.importorskip("torch")
begin = pytest.importorskip("hpccoll.torch.horovod.async_operations")
How = begin.How


def test_words_of_horovod():
    assert How.of(None) == How.of("average") == How.of(None, True) == How()
    assert How.of(None, False, 2, 3) == How("sum", 2.0, 3.0)
    for wrong in (("mean", None), ("sum", False)):
        with pytest.raises(ArgumentError):
            How.of(*wrong)


def test_a_sparse_tensor_is_refused_before_anything_begins():
    with pytest.raises(ArgumentError, match="sparse_allreduce_async"):
        begin.reduce(torch.ones(2).to_sparse(), None, How(), None)
