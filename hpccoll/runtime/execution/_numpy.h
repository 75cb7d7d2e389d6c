/* NumPy's C API; _module.c imports it for all files of this module. */
#ifndef HPCCOLL_NUMPY_H
#define HPCCOLL_NUMPY_H

#include "_python.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hpccoll_executor_array_api
#define PY_UFUNC_UNIQUE_SYMBOL hpccoll_executor_ufunc_api
#ifndef IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#endif
