"""The process group: collectives, messages and registered memory of ``torch.distributed``.

    operators options   torch's operators and options, as MPI's arguments
    eager               calls with the modes of autograd that their caller has
    work lane           what a call returns; the thread of asynchronous calls
    arrivals            waits until all ranks of the node have come to a call
    collectives sparse  the operations, on dense and on sparse tensors
    peers               messages between two ranks
    registered          memory that other ranks of the node read in place
    group               Group, which torch calls
    rendezvous          how ranks find each other

It imports nothing of :mod:`hpccoll.torch.horovod`. A new operation of ``torch.distributed`` goes
into ``collectives`` or ``peers``, its method into ``group``.
"""
