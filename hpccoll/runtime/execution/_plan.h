/* Compiled plans: their instructions and what these refer to. */
#ifndef HPCCOLL_PLAN_H
#define HPCCOLL_PLAN_H

#include "_call_log.h"
#include "_channels.h"
#include "_half.h"
#include "_numpy.h"

/* The instructions: a word for each of op, phase and up to six operands; see compiled_plan.py. */
enum { END, COPY, REDUCE, SEND, FLUSH, TAKE, TAKEN, NOTE, POST, START, AWAIT, OPERATIONS };
enum { WIDTH = 8 };
/* Ways of sending a message: while others of the call are pending; alone; while this rank receives
 * another one, and reduces none. */
enum { PIPELINED, ALONE, EXCHANGED };
/* Bases of addresses. */
enum { IN, OUT, SCRATCH, CELL, BASES };
/* Addresses keep their base in the bits above these. */
#define OFFSET_BITS 48
#define OFFSET(address) ((address) & (((int64_t)1 << OFFSET_BITS) - 1))
#define BASE(address) ((address) >> OFFSET_BITS)
/* Polls of a word before the GIL is released, if every rank has its own core: 1-2 us. */
#define SPINS 1500

/* Reduction kernel: a loop of NumPy, or a kernel for 16-bit floats. */
typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    const HalfKernel *half;
    int64_t itemsize; /* 0 without a reduction */
} Kernel;

typedef struct {
    PyObject_HEAD
    int64_t *code;
    Py_ssize_t length, sends;
    int64_t sizes[CELL];
    Channel *channels;
    Py_ssize_t channel_count;
    Kernel kernel;
    char *scratch, *accumulator;
    int64_t accumulator_bytes;
    int spins, remote;  /* remote: it has MPI messages */
    int64_t copy_cost;  /* cost of recent copies of long messages into cells, in ps per byte */
    CallHash call_hash; /* call hash of its call, in a word next to a message's number */
    int64_t *counts;  /* of its call, if its form has plans for any size: their number, and they */
    Word *log;        /* log of calls, NULL if they are not recorded; .. */
    Word *alarm;      /* .. and the number plus one of the call in which a rank has failed */
    PyObject *memory; /* views of its arrays; copies share them */
    PyObject *owners, *waiter;
} CompiledPlan;

const char *check_plan(CompiledPlan *plan);
void mark_messages(CompiledPlan *plan);

#endif
