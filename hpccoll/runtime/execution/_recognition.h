/* Keys of calls: what the cache of calls compares; see _recognition.c. */
#ifndef HPCCOLL_RECOGNITION_H
#define HPCCOLL_RECOGNITION_H

#include "_executor.h"

/* Forms of a buffer argument. */
enum { ABSENT, NOTHING, IN_ITS_PLACE, ARRAY };
enum { SENT, RECEIVED, SIDES };

/* Counts or displacements: a list, tuple or array of a call, or copied values. */
typedef struct {
    PyObject *object;
    int64_t *values;
    Py_ssize_t length; /* number of values plus one; 0 for none */
} Vector;

typedef struct {
    int form;
    Py_ssize_t nbytes;
    PyArray_Descr *dtype;
    PyObject *type;  /* the type of [array, type], [array, count, type] and forms with vectors */
    long count;
    Vector counts, displs;
} Side;

/* Key of a call in the cache. */
typedef struct {
    long method, root;
    PyObject *op;
    Vector counts;
    Side sides[SIDES];
} Key;

/* Return one of its values; -1 if it is too large for MPI. */
static inline int64_t value_of(const Vector *vector, Py_ssize_t i)
{
    if (vector->values != NULL)
        return vector->values[i];
    if (PyArray_Check(vector->object)) {
        const void *data = PyArray_DATA((PyArrayObject *)vector->object);
        return PyArray_ITEMSIZE((PyArrayObject *)vector->object) == 8
            ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
    }
    int overflow;
    return PyLong_AsLongLongAndOverflow(PySequence_Fast_GET_ITEM(vector->object, i), &overflow);
}

/* A target for calls of one form and any size; _any_size.c. */
typedef struct AnySize AnySize;
extern PyTypeObject AnySizeType;
PyObject *target_for(AnySize *self, const Key *key, PyArrayObject *const *arrays);
int accepts(const AnySize *self, const Key *key);
int replaces(const AnySize *self, const AnySize *other);
int repeats(AnySize *self, uint64_t hash);
PyObject *copy_of(PyObject *target);
const int *sides_of(const AnySize *self);

#endif
