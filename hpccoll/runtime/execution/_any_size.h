/* A target for calls of one form and any size. */
#ifndef HPCCOLL_ANY_SIZE_H
#define HPCCOLL_ANY_SIZE_H

#include "_arguments.h"

typedef struct AnySize AnySize;

extern PyTypeObject AnySizeType;

PyObject *target_for(AnySize *self, const Key *key);
int accepts(const AnySize *self, const Key *key);
int replaces(const AnySize *self, const AnySize *other);
int repeats(AnySize *self, uint64_t hash);
PyObject *copy_of(PyObject *target);
const int *sides_of(const AnySize *self);
PyObject *hash_of_amount(PyObject *module, PyObject *args);

#endif
