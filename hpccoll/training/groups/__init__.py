"""Parallel groups: who works with whom, and the exchanges that groups need.

    placement.py   which ranks share a group: near ones for the inner axes
    meshes.py      mesh(comm, dp=, tp=, pp=, sp=, ep=): a communicator for every axis
    neighbours.py  messages between neighbours, whose waits are bounded
    sequence.py    Ulysses: all heads of a part of the sequence <-> some heads of all of it
    ring.py        ring attention: blocks of the sequence go round
    experts.py     tokens go to their experts, and come back
    pipeline.py    activations and gradients between the stages of a pipeline

The exchanges take any communicator and know no mesh; and host arrays: NumPy's, or others whose
memory ``numpy.asarray`` sees (CPU tensors of PyTorch, JAX arrays). Results are NumPy's. A new axis
is a name in ``placement.AXES``; a new exchange is a module.
"""

from hpccoll.training.groups.experts import Dispatch, Experts
from hpccoll.training.groups.meshes import Mesh, mesh
from hpccoll.training.groups.pipeline import Pipeline, one_forward_one_backward
from hpccoll.training.groups.placement import AXES, Placement, place
from hpccoll.training.groups.ring import ring_blocks, ring_sums
from hpccoll.training.groups.sequence import Ulysses

__all__ = ["AXES", "Dispatch", "Experts", "Mesh", "Pipeline", "Placement", "Ulysses", "mesh",
           "one_forward_one_backward", "place", "ring_blocks", "ring_sums"]
