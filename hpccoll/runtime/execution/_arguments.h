/* Arguments of calls, and keys of calls: what the cache of calls compares.
 *
 * _arguments.c reads arguments, _recognition.c has the cache.
 */
#ifndef HPCCOLL_ARGUMENTS_H
#define HPCCOLL_ARGUMENTS_H

#include "_numpy.h"

/* Forms of a buffer argument. */
enum { ABSENT, NOTHING, IN_ITS_PLACE, MEMORY };
enum { SENT, RECEIVED, SIDES };

/* Counts or displacements; a value that is too large for MPI is -1. */
typedef struct {
    int64_t *values;
    Py_ssize_t length; /* number of values plus one; 0 for none */
} Vector;

typedef struct {
    int form;
    Py_ssize_t nbytes;
    PyArray_Descr *dtype;
    PyObject *type; /* the type of [buffer, type], [buffer, count, type] and forms with vectors */
    long count;     /* plus one; 0 for none. With displs it is the count of (count, displacement) */
    Vector counts, displs;
} Side;

/* Key of a call in the cache. */
typedef struct {
    long method, root;
    PyObject *op;
    Vector counts;
    Side sides[SIDES];
} Key;

/* Vectors of a key: the counts of the call, counts and displacements of both sides. */
enum { VECTORS = 5 };

static inline void list_vectors(Key *key, Vector **vectors)
{
    *vectors++ = &key->counts;
    for (int i = 0; i < SIDES; i++) {
        *vectors++ = &key->sides[i].counts;
        *vectors++ = &key->sides[i].displs;
    }
}

/* Memory of a buffer argument. */
typedef struct {
    char *data;
    PyObject *object; /* its exporter, a borrowed reference; NULL without memory */
    Py_buffer view;   /* its export, which bars a resize; its obj is NULL for NumPy arrays */
} Memory;

enum { FEW_VALUES = 64 };

/* What a key of a running call refers to. */
typedef struct {
    Memory memory[SIDES];
    int64_t values[FEW_VALUES]; /* of vectors; more are allocated */
    Py_ssize_t used;
    int64_t *allocated[VECTORS];
    int allocations;
} Arguments;

int prepare_arguments(void);
int read_call(long method, const char *roles, PyObject *const *objects, Key *key,
              Arguments *arguments);
void release_arguments(Arguments *arguments);
PyObject *keep_memory(const Arguments *arguments);
int read_buffer_kind(PyObject *object, uint64_t *nbytes, uint64_t *type);
PyObject *set_in_place(PyObject *module, PyObject *object);

#endif
