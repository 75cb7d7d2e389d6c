"""Operators of torch as MPI's: which exist for which types, what is done before and after."""

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentTypeError

torch = pytest.importorskip("torch")
operators = pytest.importorskip("hpccoll.torch.process_group.operators")
ReduceOp = torch.distributed.ReduceOp


def through_options(op):
    """As it arrives: another type than the one it was given as."""
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = op
    return options.reduceOp


@pytest.mark.parametrize("name, mpi", [
    ("SUM", MPI.SUM), ("AVG", MPI.SUM), ("PRODUCT", MPI.PROD), ("MIN", MPI.MIN), ("MAX", MPI.MAX),
    ("BAND", MPI.BAND), ("BOR", MPI.BOR), ("BXOR", MPI.BXOR)])
def test_every_operator_is_found_in_both_forms(name, mpi):
    op = getattr(ReduceOp, name)
    for form in (op, through_options(op)):
        found = operators.operator_of(form, torch.int32)
        assert found.mpi == mpi and found.mean == (name == "AVG") and found.factor is None


def test_a_factor_is_carried_by_the_operator():
    op = through_options(torch.distributed._make_nccl_premul_sum(0.25))
    found = operators.operator_of(op, torch.float32)
    values = torch.tensor([4.0, 8.0])
    found.scale_input(values)
    assert values.tolist() == [1.0, 2.0] and found.mpi == MPI.SUM


@pytest.mark.parametrize("dtype, whole, wanted", [
    (torch.float32, [3.0, -3.0], [1.5, -1.5]), (torch.int64, [3, -3], [1, -1]),
    (torch.bfloat16, [3.0, -3.0], [1.5, -1.5])])
def test_means(dtype, whole, wanted):
    values = torch.tensor(whole, dtype=dtype)
    operators.operator_of(ReduceOp.AVG, dtype).scale_result(values, 2)
    assert values.tolist() == wanted


@pytest.mark.parametrize("name, dtype", [
    ("BAND", torch.float32), ("BXOR", torch.bfloat16), ("MIN", torch.complex64),
    ("AVG", torch.bool), ("PREMUL_SUM", torch.bool)])
def test_what_makes_no_sense(name, dtype):
    with pytest.raises(ArgumentTypeError, match=f"ReduceOp.{name} .*{dtype}"):
        operators.operator_of(getattr(ReduceOp, name), dtype)


@pytest.mark.parametrize("name, mpi", [("SUM", MPI.LOR), ("PRODUCT", MPI.LAND), ("MIN", MPI.LAND),
                                       ("MAX", MPI.LOR), ("BXOR", MPI.LXOR)])
def test_truth_values(name, mpi):
    assert operators.operator_of(getattr(ReduceOp, name), torch.bool).mpi == mpi
