/* A check of all processes during MPI_Finalize. */
#ifndef HPCCOLL_FINALIZE_H
#define HPCCOLL_FINALIZE_H

#include "_python.h"

PyObject *check_at_exit(PyObject *module, PyObject *args);

#endif
