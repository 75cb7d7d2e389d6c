/* The pending operations of this process. */
#ifndef HPCCOLL_PENDING_H
#define HPCCOLL_PENDING_H

#include "_python.h"

/* The list of runtime/progress/engine.py; NULL before it exists. */
extern PyObject *pending_operations;

int set_pending(PyObject *list);
void remove_pending(PyObject *operation);

static inline int others_pending(Py_ssize_t own)
{
    return pending_operations != NULL && PyList_GET_SIZE(pending_operations) > own;
}

#endif
