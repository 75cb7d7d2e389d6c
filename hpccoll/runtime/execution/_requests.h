/* Declarations for requests: pending operations and queues. */
#ifndef HPCCOLL_REQUESTS_H
#define HPCCOLL_REQUESTS_H

#include "_executor.h"
#include <sched.h>

/* Owner of an operation: none; a thread that runs it and soon releases it; or Python, for work that
 * machine code cannot do. */
enum { FREE, RUNNING, CLAIMED };

typedef struct CompiledRun CompiledRun;

/* Entry of a queue; `compiled` is NULL if the interpreter runs the operation. */
typedef struct { PyObject *operation; CompiledRun *compiled; } Turn;

/* Operations whose messages share channels, in the order of their calls. */
typedef struct {
    PyObject_HEAD
    Turn *entries;
    Py_ssize_t count, room;
    char broken;  /* one has failed: its messages are in flight, no other must receive them */
} RequestQueue;

/* Generalized request that is lent to one operation at a time. */
typedef struct {
    PyObject_HEAD
    unsigned long long handle;
    PyObject *owner;
} Token;

typedef struct {
    PyObject_HEAD
    PyObject *free, *make, *plan;
    PyTypeObject *request;
} Begin;

struct CompiledRun {
    PyObject_HEAD
    Run *run;
    RequestQueue *queue;           /* NULL: it has its own channels */
    Begin *begin;         /* its cache after its request; NULL for a persistent one */
    Token *token;         /* while it is pending */
    PyObject *slow_path;  /* the Python slow path of this run */
    char idle;            /* certainly inactive and without an error */
    char over;            /* no longer needed */
    char threaded;        /* a thread may progress it */
    char is_long;         /* it moves many bytes, so other threads should run meanwhile */
    char queued, seen_once;     /* on the list of the native thread; found there before */
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

/* _background.c: the following functions need the GIL. */
int prepare_background(void);
int put_under_way(CompiledRun *operation);
int enter_queue(RequestQueue *queue, PyObject *operation);
void leave_queue(RequestQueue *queue, PyObject *operation);
void break_queue(RequestQueue *queue);
void take_back(CompiledRun *operation);
Turn whose_turn(RequestQueue *queue);
int hands_over(const CompiledRun *operation);
void resume(int more);
PyObject *stop_background(PyObject *module, PyObject *Py_UNUSED(none));

#endif
