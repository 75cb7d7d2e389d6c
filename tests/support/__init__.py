"""What tests share: doubles, mutants, and other implementations to compare with.

    gpu/                         stand-ins for CuPy and NCCL, stricter than these
    threads/                     whole programs: ranks that are threads, with communicators
    brute_force.py, reference.py what lowered programs, and programs as they are written, really do
    mutate.py                    mutants of lowered programs, and whether the proof agrees
    mutate_schedules.py, mutations/  mutants of whole schedules, and whether the proof agrees
    extra_schedules.py           schedules with lanes, and with operations of the network
    decoding.py, compiled plans.py        compiled plans, back into programs, and for people
    edits.py                     edits of the sources by a qualified name and a node of the syntax
    shards.py                    optimizers and models for sharded training

No tool may know how the part works that it tests. Tests import it as ``support``; programs of it
run by ``PYTHONPATH=.:tests python -m support.mutate``.
"""
