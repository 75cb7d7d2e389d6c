/* A kernel for 16-bit floats, for other compiled parts; _half.c says what it does. */
#ifndef HPCCOLL_HALF_H
#define HPCCOLL_HALF_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Which operands are float32 instead; ROUNDED: the result is also stored in 16 bits. */
enum { LEFT_WIDE = 1, RIGHT_WIDE = 2, INTO_WIDE = 4, ROUNDED = 8 };

typedef struct HalfKernel {
    PyObject_HEAD
    void (*apply)(const struct HalfKernel *kernel, int form, int64_t count, const char *left,
                  const char *right, char *into, char *rounded);
    void (*widen)(const char *from, float *into, int64_t count);
    void (*narrow)(const float *from, char *into, int64_t count);
    void (*loop)(char **operands, Py_ssize_t const *count, Py_ssize_t const *strides, void *data);
    void *data;
} HalfKernel;

#endif
