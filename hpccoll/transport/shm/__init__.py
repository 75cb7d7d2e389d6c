"""Messages between processes of a node through shared memory.

    mapping.py     memory that the ranks of a node map together
    channels.py    what lies in it: a channel for each pair of ranks, and registered regions
    eager.py       small messages: the sender copies into a cell, the receiver out of it
    rendezvous.py  any message: the sender announces it, the receiver reads it where it lies
    endpoint.py    decides between the two, and sends the rest by MPI

A *cell* is shared memory that a message is copied through. (A slot is a schedule's word.)
Another way for a message to travel is a branch of ``rendezvous.Send.post`` and ``Receive.arrived``.
"""
