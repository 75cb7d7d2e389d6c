"""Run plans: ``executor`` interprets them, ``compiled`` hands a ``tape`` to machine code.

``attendance`` looks after a tape that waits, and ``remote`` has its messages to other nodes.
``windows`` brings what lies in device memory to the host and back, as ``transfers`` says that a
program needs it; ``nccl`` queues calls on GPUs instead. An executor of another kind takes the place
of ``executor``.
"""
