"""Stand-ins for GPUs, and random calls on them.

    device.py           a stand-in for CuPy
    mirrored.py         the transport of device memory, for rules that look at host arrays
    cuda_on_host.py     its kernels: CUDA C, compiled for the processor
    streams.py, tasks.py, pinned.py  its streams, events and pinned memory: as late as they may be
    ipc.py, ipc_events.py  device memory and events that processes share
    nccl.py, nccl_meetings.py  a stand-in for NCCL, with its rules
    cupy_interface.py   whether the stand-ins take what the real packages take, and nothing else
    device_world.py, nccl_world.py  collectives on device arrays, ranks in one process
    tensors.py          doubles of other frameworks' arrays
    kernel_types.py     the types that each operator has a kernel for
    real_device.py      a real device, where there is one, in the place of its stand-in
"""
