"""Locations and hardware of the ranks, as values.

    discovery.py  query all ranks, collectively: topology, oversubscription, fabric
    levels.py     one rank's position, and the groups that positions give
    slurm.py      switches from Slurm
    groups.py     groups of communicators, and communicators of the same group
    identity.py   processor and MPI library
    limits.py     sizes of messages that suit the machine; ``context.limits`` at run time

Only ``discover`` and ``private_copy`` communicate. A new level of the machine goes into
``levels.LEVELS`` and ``Position``, a description of a network into a module like ``slurm.py``, a
limit into ``Limits``.
"""
