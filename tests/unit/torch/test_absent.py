"""Parameters without weights tell facts, and ask their owner before anybody computes with them."""

import pickle

import pytest

torch = pytest.importorskip("torch")
absent = pytest.importorskip("hpccoll.torch.absent")


class Bank:
    """Gives a parameter its weights when somebody needs them."""

    def __init__(self, parameter, weights):
        self.weights, self.asked = weights, 0
        absent.take(parameter, self)

    def need(self, parameter):
        self.asked += 1
        absent.give(parameter, self.weights)


class Refusing:
    """Has no weights."""

    def need(self, parameter):
        raise LookupError("not here")


@pytest.fixture
def parameter():
    return torch.nn.Parameter(torch.arange(6.0).view(2, 3))


def test_facts_without_weights(parameter):
    absent.take(parameter, Refusing())
    assert parameter.shape == (2, 3) and parameter.size(0) == 2 and parameter.numel() == 6
    assert parameter.dtype == torch.float32 and parameter.device.type == "cpu"
    assert parameter.requires_grad and parameter.is_leaf and parameter.grad is None
    assert parameter.is_floating_point() and torch.numel(parameter) == 6 and len(parameter) == 2
    assert isinstance(parameter, torch.nn.Parameter)
    assert repr(parameter) == "AbsentParameter((2, 3), torch.float32)"
    parameter.grad = torch.zeros(2, 3)
    assert parameter.grad is not None and not parameter.requires_grad_(False).requires_grad


@pytest.mark.parametrize("use", [
    lambda each: each + 1, lambda each: each.data, lambda each: each.T, lambda each: each[0],
    lambda each: each.detach(), lambda each: each.numpy(), lambda each: each.sum(),
    lambda each: torch.cat([torch.zeros(1, 3), each]), lambda each: each.copy_(torch.ones(2, 3)),
    lambda each: torch.nn.functional.linear(torch.ones(3), weight=each), pickle.dumps, float, bool])
def test_who_wants_elements_asks_the_owner(parameter, use):
    absent.take(parameter, Refusing())
    with pytest.raises(LookupError, match="not here"):
        use(parameter)


def test_the_owner_may_give_them(parameter):
    bank = Bank(parameter, parameter.detach().clone())
    assert (parameter @ torch.ones(3)).tolist() == [3, 12] and bank.asked == 1
    assert type(parameter) is torch.nn.Parameter
    assert parameter.sum() == 15 and bank.asked == 1


def test_memory_is_that_of_one_element(parameter):
    absent.take(parameter, Refusing())
    absent.give(parameter, torch.ones(2, 3))
    absent.take(parameter, Refusing())
    with torch._C.DisableTorchFunctionSubclass():
        assert parameter.untyped_storage().nbytes() == 4 and parameter.detach().isnan().all()


def test_gradients_come_while_weights_are_gone(parameter):
    loss = (parameter * 2).sum()
    absent.take(parameter, Refusing())
    loss.backward()
    assert parameter.grad.tolist() == [[2] * 3] * 2
