/* Lock of a communicator that admits one call at a time. */
#ifndef HPCCOLL_CALL_GUARD_H
#define HPCCOLL_CALL_GUARD_H

#include "_python.h"

/* It changes only with the GIL. */
typedef struct {
    PyObject_HEAD
    unsigned long owner_thread; /* a thread, 0 for none */
    unsigned long
        outer_thread; /* the thread whose call makes calls that are part of it, 0 for none */
} CallGuard;

extern PyTypeObject CallGuardType;

int raise_refusal(const CallGuard *call_guard);
PyObject *set_refusal(PyObject *module, PyObject *function);

static inline int acquire(CallGuard *call_guard)
{
    unsigned long thread = PyThread_get_thread_ident();
    if (call_guard->owner_thread
        || (call_guard->outer_thread && call_guard->outer_thread != thread)) {
        return raise_refusal(call_guard);
    }
    call_guard->owner_thread = thread;
    return 0;
}

#endif
