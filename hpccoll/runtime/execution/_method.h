/* Methods in C that fall back to Python. */
#ifndef HPCCOLL_METHOD_H
#define HPCCOLL_METHOD_H

#include "_python.h"

enum { MOST_ARGUMENTS = 6 };

/* Method with a fast path; `slow` is the Python method of its class. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow, *names, *defaults, *attributes;
    long method;
    char roles[MOST_ARGUMENTS + 1];
    Py_ssize_t count;
} Recognised;

/* Bind a method to an object, like a function of a class: for tp_descr_get. */
static inline PyObject *bind_method(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

#endif
