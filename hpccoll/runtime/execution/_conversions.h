/* Lower-case allreduce of one Python float or integer. */
#ifndef HPCCOLL_CONVERSIONS_H
#define HPCCOLL_CONVERSIONS_H

#include "_method.h"

extern PyTypeObject NumbersType;

int prepare_numbers(void);
PyObject *set_operators(PyObject *module, PyObject *args);
PyObject *number_allreduce(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);

#endif
