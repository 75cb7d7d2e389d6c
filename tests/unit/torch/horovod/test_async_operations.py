"""What is asked of a reduction, and what factors do to numbers."""

import pytest

from hpccoll.errors import ArgumentError

torch = pytest.importorskip("torch")
begin = pytest.importorskip("hpccoll.torch.horovod.async_operations")
How = begin.How


def test_words_of_horovod():
    assert How.of(None) == How.of("average") == How.of(None, True) == How()
    assert How.of(None, False, 2, 3) == How("sum", 2.0, 3.0)
    for wrong in (("mean", None), ("sum", False)):
        with pytest.raises(ArgumentError):
            How.of(*wrong)


@pytest.mark.parametrize("op", begin.OPS)
def test_derivatives_go_through_sums(op):
    if op in ("average", "sum"):
        How(op).check_derivative()
    else:
        with pytest.raises(ArgumentError, match=op):
            How(op).check_derivative()


@pytest.mark.parametrize("dtype, wanted", [(torch.int32, [-3, 2]), (torch.float32, [-3.5, 2.5])])
def test_means(dtype, wanted):
    numbers = torch.tensor([-7, 5], dtype=dtype)
    assert begin.rescale(numbers, How(), 2) is numbers
    assert numbers.tolist() == wanted


@pytest.mark.parametrize("dtype, wanted", [(torch.int32, [-3, 2]), (torch.float64, [-3.5, 2.5]),
                                           (torch.complex64, [-3.5, 2.5])])
def test_factors(dtype, wanted):
    numbers = torch.tensor([-7, 5], dtype=dtype)
    assert begin.scale(numbers, 0.5).tolist() == wanted
    assert begin.rescale(torch.tensor([3.0]), How("sum", 9, 2), 5).tolist() == [6.0]


def test_names_of_a_group():
    assert begin.names("g", 2) == ["g.0", "g.1"] and begin.names("g", 1) == ["g"]
    assert begin.names(None, 2) == [None, None] and begin.names("g", 0) == []


def test_a_sparse_tensor_is_refused_before_anything_begins():
    with pytest.raises(ArgumentError, match="sparse_allreduce_async"):
        begin.reduce(torch.ones(2).to_sparse(), None, How(), None)
