/* What the parts of the compiled executor share; _tape.c says what they are. */
#ifndef HPCCOLL_TAPE_H
#define HPCCOLL_TAPE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hpccoll_tape_array_api
#ifndef IMPORTS_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

/* What an address is relative to. */
enum { IN, OUT, SCRATCH, CELL, BASES };
/* What running comes to. */
enum { DONE, WAITING, ELSEWHERE };
/* Microseconds that a wait takes before Python looks after it. */
#define PATIENCE 1000
/* The same while other operations are under way, which have to be moved on too. */
#define SLICE 50

typedef struct {
    PyObject_HEAD
    long long sent, received;
} Counters;

typedef _Atomic int64_t Word;

typedef struct {
    Counters *counters;
    Word *line, *taken;
    char *cells;
    int64_t cell_bytes;
} Channel;

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    int64_t itemsize;
} Kernel;

typedef struct {
    PyObject_HEAD
    int64_t *code;
    Py_ssize_t length, sends;
    int64_t sizes[CELL];
    Channel *channels;
    Py_ssize_t channel_count;
    Kernel *kernels;
    Py_ssize_t kernel_count;
    char *scratch;
    int spins;
    int64_t pace;    /* of recent copies of long messages into cells, in picoseconds a byte */
    unsigned passed; /* times that it was too slow to be run */
    int64_t stamp;   /* of the call that it serves; what stands in a word beside a message's number */
    Word *log;       /* where calls are noted, NULL for those that are not; .. */
    Word *alarm;     /* .. and the number, and one more, of that in which somebody has given up */
    PyObject *memory, *owners, *waiter;
} Tape;

/* A message for which there was no cell. */
typedef struct { const int64_t *step; int64_t number; } Unsent;

typedef struct {
    char *base[BASES];
    Py_ssize_t at;
    Py_ssize_t unsent_count;
    Unsent *unsent;
} State;

typedef struct {
    PyObject_HEAD
    Tape *tape;
    State state;
    PyObject *buffers;
} Run;

enum { MOST_ARGUMENTS = 6 };

/* A method with a short way; `slow` is the method as it stands in its class. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow, *names, *defaults, *attributes;
    long method;
    char roles[MOST_ARGUMENTS + 1];
    Py_ssize_t count;
} Recognised;

extern PyTypeObject CountersType, TapeType, RunType, CallsType, RecognisedType;
extern PyTypeObject TokenType, LaneType, TapedType, BeginType, NumbersType;

/* _tape.c */
int advance(Tape *tape, State *state, int64_t patience);
int play(Tape *tape, char *in, char *out, PyObject *buffers);
int passes(Tape *tape);
Run *new_run(Tape *tape, char *in, char *out, PyObject *buffers);

/* _recognition.c */
int prepare_recognition(void);
PyObject *set_in_place(PyObject *module, PyObject *object);
PyObject *new_method(PyObject *slow, vectorcallfunc call);

/* _requests.c */
int prepare_requests(void);
int others_under_way(void);
PyObject *begin_call(PyObject *target, char *in, char *out, PyObject *buffers);
PyObject *set_progress(PyObject *module, PyObject *args);
PyObject *shortcut(PyObject *module, PyObject *args);

/* _numbers.c */
int prepare_numbers(void);
PyObject *set_operators(PyObject *module, PyObject *args);
PyObject *number_allreduce(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);

#endif
