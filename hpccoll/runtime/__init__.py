"""Running: a plan, memory and an endpoint make an execution. Only here a plan meets a transport.

``planner`` goes from a call and a choice to an execution, ``binding`` puts a plan onto memory,
``executor`` runs it; or ``tape`` makes instructions of it, which ``compiled`` hands to the
compiled executor, ``_tape.c``; ``attendance`` looks after it, and
``remote`` has its messages to other nodes. Both note in ``moments`` what they do when, where
somebody wants to know. ``windows`` brings what lies in device memory to the host and back, as
``transfers`` says that a program needs it. ``description`` says what ranks must agree on about a
call, ``log`` what this one has called. ``progress`` drives what nobody waits for, ``nccl`` queues
calls on GPUs instead, ``context`` owns all of it for a communicator. An executor of another kind
takes the place of ``executor``; a new endpoint is made in ``context``.
"""
