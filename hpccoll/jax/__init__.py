"""JAX: collectives under ``jit``, ``grad`` and ``vmap``; data-parallel training.

    calls                      collectives as objects: execution, shapes, transpose
    fusion                     the JAX primitive; fusion of a tree into one vector for each dtype
    collectives                allreduce, bcast, ..., with the names of mpi4jax
    gradients                  gradient averaging, broadcast of parameters, an optax wrapper

Each call is an *ordered effect*: JAX preserves program order under ``jit``, in loops and in
backward passes, so ranks with the same program make the same sequence of calls. A module imports
only modules before it in this list.
"""

from hpccoll.training.framework import require, world

require("jax", "0.5")

from hpccoll.jax.collectives import (  # noqa: E402  report a missing package before its import
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
from hpccoll.jax.gradients import (  # noqa: E402
    Averager,
    average_gradients,
    broadcast_parameters,
    distributed,
)

__all__ = ["Averager", "allgather", "allreduce", "alltoall", "average_gradients", "barrier",
           "bcast", "broadcast_parameters", "distributed", "gather", "recv", "reduce",
           "reduce_scatter", "scan", "scatter", "send", "sendrecv", "world"]
