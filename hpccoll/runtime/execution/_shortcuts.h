/* Methods in C that fall back to Python, by name. */
#ifndef HPCCOLL_SHORTCUTS_H
#define HPCCOLL_SHORTCUTS_H

#include "_python.h"

PyObject *shortcut(PyObject *module, PyObject *args);

#endif
