"""Process group of ``torch.distributed``: collectives, messages, registered memory.

    operators           conversion of torch's operators and options
    work work_queue     Work handles; the thread of asynchronous calls
    collectives sparse  collectives on dense and on sparse tensors
    peers               point-to-point messages
    registered          memory that other ranks of the node read in place
    group               Group, the ProcessGroup subclass
    rendezvous          the ``mpi://`` rendezvous

Does not import :mod:`hpccoll.torch.horovod`. A new operation of ``torch.distributed`` belongs in
``collectives`` or ``peers``, its method in ``group``.
"""
