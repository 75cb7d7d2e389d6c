"""What a schedule costs before any machine is known: who is where, and which bytes each rank moves.

``network`` has the place of every rank in a layout, and what messages between ranks share;
``workload`` has the rounds of a rank in bytes. The simulator adds a machine and lets time pass,
:mod:`hpccoll.tune.cost_model` adds measured times. A new kind of shared resource goes into
``network``.
"""
