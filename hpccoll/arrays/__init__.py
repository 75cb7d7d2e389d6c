"""Work on arrays: reduction kernels, 16-bit floats, device memory. Nothing here communicates.

    kernels.py  ``into = left op right`` for an operator, a dtype and an array library
    half.py     the kernels of 16-bit floats
    exact.py    inputs without rounding, and the expected results
    cuda.py     the kernels of device memory, from the source reduce.cu
    user_operators.py  operators of the program's own that have a kernel for device memory
    device.py   recognise device memory, and reach it
    resident.py device memory that stays where it is, for work on the caller's stream
    ipc.py      device memory that the ranks of a node share: CUDA IPC; ipc_probe.py: can they
    ipc_queue.py  the work of a call on such memory
    nccl.py     what NCCL has of MPI's types and operators; nccl_members.py: who can use it
    mirror.py   host arrays and their counterparts on a device
    staging.py  order copies of device memory that travels through the host
    ways.py     how device data may get from rank to rank, and which way serves whom
    evidence.py what this rank finds out about each way

A call works on arrays of one namespace (``numpy``, ``cupy``) at a time. This is the only room that
imports CuPy, and only when somebody brings a device array. A new kernel is a branch of
``kernels.kernel``, its ufunc a line of ``UFUNCS``, its meaning a line of ``exact.MEANING``; a new
array library is a case of ``device.borrow``.
"""
