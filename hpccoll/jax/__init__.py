"""JAX: collectives under ``jit``, ``grad`` and ``vmap``, and what a training loop needs of them.

    framework                  is JAX here, and in which version
    communicator               the communicator that calls use unless told otherwise
    agreement                  do all ranks bring the same tree
    calls                      collectives as data: what runs, on which shapes, and its transpose
    primitive                  how JAX runs, differentiates and batches a call
    fusion                     a tree of arrays as one vector for each type
    collectives                the functions: allreduce, bcast, ..., named as mpi4jax names them
    gradients optimizer        averages of gradients, start values, an optax wrapper

Every call is an *ordered effect*: JAX keeps the order of the program among all of them, under
``jit``, in loops and in backward passes, so ranks that run the same program meet in every call.
A module here imports those before it in this list only.
"""

from hpccoll.jax.framework import require_jax

require_jax()

from hpccoll.jax.collectives import (  # noqa: E402  what is missing is said before it is needed
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    gather,
    recv,
    reduce,
    reduce_scatter,
    scan,
    scatter,
    send,
    sendrecv,
)
from hpccoll.jax.communicator import world  # noqa: E402
from hpccoll.jax.gradients import Averager, average_gradients, broadcast_parameters  # noqa: E402
from hpccoll.jax.optimizer import distributed  # noqa: E402

__all__ = ["Averager", "allgather", "allreduce", "alltoall", "average_gradients", "barrier",
           "bcast", "broadcast_parameters", "distributed", "gather", "recv", "reduce",
           "reduce_scatter", "scan", "scatter", "send", "sendrecv", "world"]
