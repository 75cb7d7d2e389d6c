"""Parallel groups: meshes of communicators, and the exchanges of such groups.

    placement.py   assignment of ranks to groups: near ranks for the inner axes
    meshes.py      mesh(comm, dp=, tp=, pp=, sp=, ep=): one communicator for each axis
    neighbours.py  messages with a time-out; ring attention: blocks of the sequence circulate
    sequence.py    Ulysses: all heads of a part of the sequence <-> some heads of all of it
    experts.py     dispatch of tokens to experts, and combination of their outputs
    pipeline.py    activations and gradients between the stages of a pipeline

The exchanges accept any communicator and do not depend on a mesh. They accept NumPy arrays and
host arrays that ``numpy.asarray`` views (CPU tensors of PyTorch, JAX arrays). Results are NumPy's.
A new axis is a name in ``placement.AXES``; a new exchange is a module.
"""

from hpccoll.training.groups.experts import Dispatch, Experts
from hpccoll.training.groups.meshes import Mesh, mesh
from hpccoll.training.groups.neighbours import ring_blocks, ring_sums
from hpccoll.training.groups.pipeline import Pipeline, one_forward_one_backward
from hpccoll.training.groups.placement import AXES, Placement, place
from hpccoll.training.groups.sequence import Ulysses

__all__ = ["AXES", "Dispatch", "Experts", "Mesh", "Pipeline", "Placement", "Ulysses", "mesh",
           "one_forward_one_backward", "place", "ring_blocks", "ring_sums"]
