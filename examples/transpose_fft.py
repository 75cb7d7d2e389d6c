"""Transform a matrix in two dimensions: rows, a transpose across all ranks, rows again.

A plain mpi4py program: nothing in it knows hpccoll. To run it on hpccoll's collectives:

    mpiexec -n 4 python -m hpccoll run examples/transpose_fft.py

The transpose is done twice: with Alltoallv, from blocks that were packed one behind the other,
and with Alltoallw, where MPI datatypes pick the blocks out of the matrix. Neither dimension is a
multiple of the number of ranks. Every rank compares its part with numpy.fft.fft2.
"""
import sys

import numpy
from mpi4py import MPI

SHAPE = M, N = 61, 44
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def bands(n):
    """Deal n rows to the ranks: the slice that each of them owns."""
    ends = [n * (r + 1) // size for r in range(size)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


rows, columns = bands(M), bands(N)
height = [band.stop - band.start for band in rows]
width = [band.stop - band.start for band in columns]


def transpose_packed(mine):
    """Pack the block of every rank, exchange (Alltoallv), unpack."""
    packed = numpy.concatenate([mine[:, band].ravel() for band in columns])
    arrived = numpy.empty(M * width[rank], mine.dtype)
    comm.Alltoallv([packed, [height[rank] * w for w in width]],
                   [arrived, [h * width[rank] for h in height]])
    # The blocks lie in the order of their rows: together they are this rank's columns.
    return arrived.reshape(M, width[rank]).T.copy()


def transpose_typed(mine):
    """Describe the block of every rank by a datatype, and exchange (Alltoallw)."""
    element = MPI.C_DOUBLE_COMPLEX
    arrived = numpy.empty((M, width[rank]), mine.dtype)
    sent = [element.Create_subarray(mine.shape, (height[rank], w), (0, band.start)).Commit()
            for w, band in zip(width, columns, strict=True)]
    received = [element.Create_subarray(arrived.shape, (h, width[rank]), (band.start, 0)).Commit()
                for h, band in zip(height, rows, strict=True)]
    once = [1] * size, [0] * size
    comm.Alltoallw([mine, *once, sent], [arrived, *once, received])
    for datatype in sent + received:
        datatype.Free()
    return arrived.T.copy()


matrix = numpy.random.default_rng(seed=3).random(SHAPE)  # the same on every rank
halfway = numpy.fft.fft(matrix[rows[rank]], axis=1)
expected = numpy.fft.fft2(matrix).T[columns[rank]]
for transpose in transpose_packed, transpose_typed:
    error = numpy.zeros(1)
    error[0] = abs(numpy.fft.fft(transpose(halfway), axis=1) - expected).max()
    comm.Allreduce(MPI.IN_PLACE, error, op=MPI.MAX)
    if rank == 0:
        print(f"{size} rank{'s' * (size > 1)}, "
              f"{M}x{N} points, {transpose.__name__}: error {error[0]:.1e}")
    if not error[0] < 1e-9:
        sys.exit("wrong answer")
