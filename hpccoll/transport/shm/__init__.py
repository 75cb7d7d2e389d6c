"""Messages between processes of a node through shared memory.

    mapping.py     memory that the ranks of a node map
    channels.py    its layout: a channel for each pair of ranks, and registered regions
    endpoint.py    uses the channels where there are some, and MPI elsewhere

A *cell* is shared memory that a message is copied through. (A slot belongs to a schedule.)
A new path of messages is a branch of ``Send.post`` and ``Receive.is_readable``.
"""
