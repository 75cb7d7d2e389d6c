"""``ZeroOptimizer`` at stage 3: what goes wrong, on real ranks."""

import copy

import pytest
from mpi import zero_case
from mpi.zero_case import (
    RANK,
    SIZE,
    STRICT,
    batches,
    cut,
    hvd,
    loss_of,
    needs_threads,
    same,
    torch,
    tower,
    weights_of,
    zero,
)

from hpccoll.errors import ArgumentError, ExchangeError, ShardError
from hpccoll.training.shard import Fetching

started = zero_case.started
pytestmark = [pytest.mark.mpi, needs_threads, pytest.mark.usefixtures("started")]


def test_weights_that_are_not_here():
    model = tower()
    optimizer = cut(model)
    weight = model.mlp[0].weight
    assert weight.shape == (19, 8) and weight.numel() == 19 * 8 and weight.requires_grad
    assert isinstance(weight, torch.nn.Parameter) and "AbsentParameter" in repr(weight)
    for use in (lambda: weight + 1, lambda: weight.data, lambda: torch.stack([weight, weight]),
                lambda: torch.nn.functional.linear(torch.ones(8), weight),
                model.state_dict, lambda: copy.deepcopy(model), lambda: model.to(torch.float64)):
        with pytest.raises(ExchangeError, match="outside of its model's forward.*gathered"):
            use()
    with pytest.raises(ExchangeError, match=r"parameter 'mlp\.0\.weight' is used"):
        weight.sum()
    with optimizer.gathered(model.mlp):
        assert weight.detach().abs().sum() > 0
        assert torch.nn.functional.linear(torch.ones(8), weight).shape == (19,)
        with pytest.raises(ExchangeError, match="'words.weight'"):
            model.words.weight.sum()
    first = batches(1)[0][RANK]
    with pytest.raises(IndexError):  # a forward that fails leaves nothing behind
        model(torch.full((2, 5), 99))
    assert optimizer._cut._weights.live == 0 and not optimizer._cut._stack
    loss = loss_of(model, first)
    again = loss_of(model, first)
    again.backward()
    optimizer.step()
    with pytest.raises(ExchangeError, match="changed since the forward pass"):
        loss.backward()


def test_changes_in_place_are_found_as_ever():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    optimizer = cut(model)
    middle = []
    model[1].register_forward_hook(lambda module, args, output: middle.append(output))
    loss = model(torch.ones(1, 3)).sum()
    middle[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.synchronize()


def test_gradients_that_do_not_come():
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
    last = SIZE - 1

    def backward():
        # Rank by rank one layer more: what is fetched is the same, what is used is not.
        x = model["one"](torch.ones(1, 2))
        y = model["two"](torch.ones(1, 2))
        (x if RANK == last else x + y).sum().backward()

    for stage in (1, 2, 3):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
        options = {"fetching": STRICT} if stage == 3 else {}
        optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=stage, lr=1.0,
                                       module=model, missing="raise", **options)
        before = weights_of(model, optimizer)
        backward()
        with pytest.raises(ShardError, match=f"^rank {last}: the gradient of 'two") as told:
            optimizer.step()
        assert len(told.value.faults[last]) == 2
        assert same(weights_of(model, optimizer), before)
        optimizer.zero_grad()
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
    optimizer = cut(model, torch.optim.SGD, op=hvd.Sum, lr=1.0)
    before = weights_of(model, optimizer)
    backward()
    optimizer.step()
    after = weights_of(model, optimizer)
    assert torch.equal(after["two.bias"], before["two.bias"] - (SIZE - 1))
    assert torch.equal(after["one.bias"], before["one.bias"] - SIZE)


@pytest.mark.skipif(SIZE == 1, reason="needs ranks that differ")
def test_ranks_that_run_other_modules_learn_of_it():
    """Parts are equally large: MPI takes the gathers of one unit for those of the other."""
    model = torch.nn.ModuleList([torch.nn.Linear(5, 6) for _ in range(2)])
    optimizer = cut(model, fetching=Fetching(persistent=0, reuse=0, prefetch=0))
    before = weights_of(model, optimizer)
    order = [1, 0] if RANK == SIZE - 1 else [0, 1]
    sum(model[each](torch.ones(1, 5)).sum() for each in order).backward()
    with pytest.raises(ShardError, match=f"^rank {SIZE - 1}: has fetched other weights"):
        optimizer.step()
    assert same(weights_of(model, optimizer), before)
    optimizer.zero_grad()
    sum(each(torch.ones(1, 5)).sum() for each in model).backward()
    optimizer.step()
    assert not same(weights_of(model, optimizer), before)


def test_what_makes_no_sense():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for options, problem in (
            ({"params": [*model.parameters(), *other.parameters()]}, "2 of them are not"),
            ({"params": [model.weight]}, "lacks bias"), ({"units": [other]}, "not inside"),
            ({"missing": "some"}, "zeros, raise")):
        with pytest.raises(ArgumentError, match=problem):
            cut(model, **options)
    with pytest.raises(ArgumentError, match="no units"):
        zero.ZeroOptimizer(model.parameters(), torch.optim.SGD, units=[model])
    optimizer = cut(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ExchangeError, match="under way"):
        optimizer.zero_grad()
    model(torch.ones(1, 2))
    with pytest.raises(ExchangeError, match="backward_passes_per_step"):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(ArgumentError, match="groups of"):
        optimizer.load_full_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
