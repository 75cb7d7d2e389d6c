"""Messages between processes of a node through shared memory.

``eager`` copies through a cell; ``rendezvous`` reads the sender's memory in place; ``endpoint`` chooses.
"""
