"""A training step simulated before it is bought: from arrays and backward times to scaling.

    model                      what is trained: arrays, and when each is ready
    architectures transformers catalog    well-known ones, from their layers; found by name
    collective_times           how long collectives take, by simulating their schedules
    traffic                    what a bucket sends: by scheme of compression, by stage of ZeRO
    program                    one rank's step: compute, begin, wait
    simulation                 simulate_step: all of these; StepForecast
    sweep plot                 best buckets, link rates at which compression pays; pictures
    measure                    what compressing costs here

The plan of buckets, the schemes and the schedules are those of a real run. A new architecture is a
function in ``architectures`` or ``transformers`` and a row in ``catalog``.
"""
