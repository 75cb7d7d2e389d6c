"""Programs of other projects, under plain mpi4py and under ``hpccoll run``.

``run_applications.py`` is the command. Each module of ``programs`` describes one program.
"""
