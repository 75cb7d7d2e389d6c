/* The cache of calls, and the methods that look them up. */
#ifndef HPCCOLL_RECOGNITION_H
#define HPCCOLL_RECOGNITION_H

#include "_python.h"

extern PyTypeObject CallsType, RecognisedType;

int prepare_recognition(void);
PyObject *new_method(PyObject *slow, vectorcallfunc call);

#endif
