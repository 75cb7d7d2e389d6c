"""Machine-independent costs of a schedule: positions of ranks, and bytes moved by each.

``network`` has the position of every rank in a layout, and the resources shared by messages;
``workload`` has the rounds of a rank in bytes. The simulator adds a machine and simulates time,
:mod:`hpccoll.tune.cost_model` adds measured times. A new kind of shared resource goes into
``network``.
"""
