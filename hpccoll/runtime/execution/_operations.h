/* Operations behind requests, and their queues: what the native thread and their owners share. */
#ifndef HPCCOLL_OPERATIONS_H
#define HPCCOLL_OPERATIONS_H

#include "_run.h"

/* Owner of an operation: none; a thread that runs it and soon releases it; or Python, for work that
 * machine code cannot do. */
enum { FREE, RUNNING, CLAIMED };

typedef struct CompiledRun CompiledRun;
typedef struct Begin Begin;
typedef struct Token Token;

/* Entry of a queue; `compiled` is NULL if the interpreter runs the operation. */
typedef struct {
    PyObject *operation;
    CompiledRun *compiled;
} Turn;

/* Operations whose messages share channels, in the order of their calls. */
typedef struct {
    PyObject_HEAD
    Turn *entries;
    Py_ssize_t count, room;
    char broken; /* one has failed: its messages are in flight, no other must receive them */
} RequestQueue;

struct CompiledRun {
    PyObject_HEAD
    Run *run;
    RequestQueue *queue;    /* NULL: it has its own channels */
    Begin *begin;           /* its cache after its request; NULL for a persistent one */
    Token *token;           /* while it is pending */
    PyObject *slow_path;    /* the Python slow path of this run */
    char idle;              /* certainly inactive and without an error */
    char over;              /* no longer needed */
    char threaded;          /* a thread may progress it */
    char is_long;           /* it moves many bytes, so other threads should run meanwhile */
    char queued, seen_once; /* on the list of the native thread; found there before */
    _Atomic char busy, ended;
};

static inline int claim(CompiledRun *operation, char how)
{
    char free = FREE;
    return atomic_compare_exchange_strong_explicit(&operation->busy, &free, how,
                                                   memory_order_acquire, memory_order_relaxed);
}

static inline void release(CompiledRun *operation)
{
    atomic_store_explicit(&operation->busy, FREE, memory_order_release);
}

static inline int has_ended(const CompiledRun *operation)
{
    return atomic_load_explicit(&operation->ended, memory_order_acquire);
}

#endif
