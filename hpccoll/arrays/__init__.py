"""Arrays of one namespace at a time: reduction kernels, 16-bit floats, device memory.

The only room that imports CuPy.
"""
