/* Python's C API, with the headers that all files of this module need. */
#ifndef HPCCOLL_PYTHON_H
#define HPCCOLL_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* Replace a reference by one to None, for tp_clear: a call of the object raises an error. */
static inline void set_none(PyObject **reference)
{
    Py_XSETREF(*reference, Py_NewRef(Py_None));
}

#endif
