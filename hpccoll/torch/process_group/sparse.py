"""Allreduce of sparse tensors: each rank gathers and sums all indices and values."""

from __future__ import annotations

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentTypeError
from hpccoll.torch.process_group.collectives import all_gather
from hpccoll.torch.process_group.operators import TorchOperator


def check_sparse(tensor: torch.Tensor, operator: TorchOperator) -> None:
    """Check that a sparse tensor can be reduced.

    Raises:
        ArgumentTypeError: the layout is not COO, or the operator is neither sum nor mean.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentTypeError("tensor", f"has the layout {tensor.layout}",
                                "use torch.sparse_coo, or tensor.to_dense()")
    if operator.mpi != MPI.SUM:
        raise ArgumentTypeError("op", "sparse tensors support Sum and Average only",
                                "use tensor.to_dense()")


def allreduce_sparse(comm: Comm, tensor: torch.Tensor, operator: TorchOperator) -> None:
    """Reduce the sparse tensors of all ranks on every rank, in place.

    The numbers of values may differ between ranks. The result is coalesced.
    """
    mine = tensor.detach().coalesce()
    counts = numpy.empty(comm.size, "i8")
    comm.Allgather(numpy.array([mine._nnz()]), counts)
    indices = [mine.indices().new_empty((count, mine.sparse_dim())) for count in counts.tolist()]
    values = [mine.values().new_empty((count, *mine.values().shape[1:]))
              for count in counts.tolist()]
    all_gather(comm, indices, mine.indices().t().contiguous())
    all_gather(comm, values, mine.values())
    total = operator.widen(torch.cat(values))
    operator.scale_input(total)
    whole = torch.sparse_coo_tensor(torch.cat(indices).t(), total, tensor.shape,
                                    check_invariants=False).coalesce()
    operator.scale_result(whole.values(), comm.size)
    with torch.no_grad():  # tensor.detach() would have separate indices and values
        tensor.copy_(whole)
