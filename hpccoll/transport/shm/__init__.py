"""Messages between processes of a node through shared memory.

    mapping.py     memory that the ranks of a node map
    channels.py    its layout: a channel for each pair of ranks, and registered regions
    eager.py       small messages: the sender copies into a cell, the receiver out of it
    rendezvous.py  any message: the sender announces it, the receiver reads it in place
    endpoint.py    chooses between the two, and sends other messages by MPI

A *cell* is shared memory that a message is copied through. (A slot belongs to a schedule.)
A new path of messages is a branch of ``rendezvous.Send.post`` and ``Receive.is_readable``.
"""
