"""Which optimizers may be cut."""

import pytest

from hpccoll.errors import ArgumentError

torch = pytest.importorskip("torch")
zero = pytest.importorskip("hpccoll.torch.zero")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW,
                                  torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
                                  torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.RMSprop,
                                  torch.optim.Rprop, torch.optim.ASGD])
def test_element_wise_ones(kind):
    zero.check_element_wise(kind, {})


@pytest.mark.parametrize("kind, problem", [(torch.optim.LBFGS, "alone"),
                                           (torch.optim.Adafactor, "whole tensors")])
def test_others(kind, problem):
    with pytest.raises(ArgumentError, match=problem):
        zero.check_element_wise(kind, {"lr": 0.1})
