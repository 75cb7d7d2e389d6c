"""Where the ranks are and what they run on, as values.

    discovery.py  ask every rank once, collectively: topology, oversubscription, fabric
    levels.py     one rank's position, and the groups that positions give
    gpus.py       what links the GPUs of a node, and what they are next to
    slurm.py      switches, as Slurm describes them
    identity.py   processor and MPI library
    limits.py     sizes of messages that suit the machine; ``context.limits`` at run time

Only ``discover`` communicates. A new level of the machine goes into ``levels.LEVELS`` and
``Position``, another description of a network beside ``slurm.py``, another limit into ``Limits``.
"""
