/* What the files of requests share: operations under way, and whose turn it is. */
#ifndef HPCCOLL_REQUESTS_H
#define HPCCOLL_REQUESTS_H

#include "_tape.h"
#include <sched.h>

/* Who has an operation: nobody; somebody who runs it, and gives it back soon; or Python, which does
   for it what machine code cannot. */
enum { FREE, RUNNING, CLAIMED };

typedef struct Taped Taped;

/* A place in a lane; `taped` is NULL where the interpreter runs it. */
typedef struct { PyObject *operation; Taped *taped; } Turn;

/* Operations whose messages share channels, in the order of their calls. */
typedef struct {
    PyObject_HEAD
    Turn *queue;
    Py_ssize_t count, room;
    char broken;  /* one has failed: its messages are on the way, no other must take them */
} Lane;

/* A generalized request, lent to one operation after the other. */
typedef struct {
    PyObject_HEAD
    unsigned long long handle;
    PyObject *owner;
} Token;

typedef struct {
    PyObject_HEAD
    PyObject *free, *make, *tape;
    PyTypeObject *request;
} Begin;

struct Taped {
    PyObject_HEAD
    Run *run;
    Lane *lane;           /* NULL: it has channels of its own */
    Begin *begin;         /* where it goes when its request is over; NULL for a persistent one */
    Token *token;         /* while it is under way */
    PyObject *attendant;  /* what Python knows of this run */
    char idle;            /* surely not under way, and nothing is wrong with it */
    char over;            /* nobody needs it any more */
    char threaded;        /* a thread may drive it */
    char is_long;         /* it moves so much that others should run meanwhile */
    char listed, met;     /* the native thread knows it, and has found it before */
    _Atomic char busy, ended;
};

static inline int claim(Taped *operation, char how)
{
    char free = FREE;
    return atomic_compare_exchange_strong_explicit(&operation->busy, &free, how,
                                                   memory_order_acquire, memory_order_relaxed);
}

static inline void release(Taped *operation)
{
    atomic_store_explicit(&operation->busy, FREE, memory_order_release);
}

static inline int has_ended(const Taped *operation)
{
    return atomic_load_explicit(&operation->ended, memory_order_acquire);
}

/* _background.c: what follows is done with the GIL. */
int prepare_background(void);
int put_under_way(Taped *operation);
int enter_lane(Lane *lane, PyObject *operation);
void leave_lane(Lane *lane, PyObject *operation);
void break_lane(Lane *lane);
void take_back(Taped *operation);
Turn whose_turn(Lane *lane);
int hands_over(const Taped *operation);
void attend(int more);
PyObject *stop_background(PyObject *module, PyObject *none);

#endif
