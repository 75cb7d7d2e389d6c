/* The ring of this process's events. */
#ifndef HPCCOLL_EVENTS_H
#define HPCCOLL_EVENTS_H

#include "_clock.h"
#include "_words.h"

/* An event; its fields by type are in hpccoll/runtime/events/ring.py. */
typedef struct {
    int64_t start, stop;
    int32_t type, comm;
    int64_t number, what, detail, nbytes;
    double sent;
} Event;

enum { CALL = 1, PHASE = 2 };

/* The ring, a power of two of rows; of every communicator the number of calls in one order on all
 * ranks; of every kind of calls their number and nanoseconds. */
typedef struct {
    Event *rows;
    Word *count;
    int64_t last, *ordered, *sums;
} EventRing;

extern EventRing event_ring; /* `rows` is NULL before an event is asked for */

static inline void add_event(Event event)
{
    if (event_ring.rows != NULL) {
        event_ring.rows[atomic_fetch_add_explicit(event_ring.count, 1, memory_order_relaxed)
                        & event_ring.last] = event;
    }
}

/* Record that an activity begins. */
static inline void add_phase(int64_t where, int64_t activity)
{
    add_event((Event){.start = nanoseconds(), .type = PHASE, .what = where, .detail = activity});
}

/* Record a call of a communicator, with a number if all ranks make it in one order. */
static inline void add_call(int32_t comm, int64_t kind, int64_t start, int64_t stop, int ordered)
{
    event_ring.sums[2 * kind]++;
    event_ring.sums[2 * kind + 1] += stop - start;
    int64_t number = ordered ? event_ring.ordered[comm]++ : -1;
    add_event((Event){start, stop, CALL, comm, number, kind, 0, 0, 0});
}

PyObject *set_ring(PyObject *module, PyObject *args);
PyObject *record_event(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *record_call(PyObject *module, PyObject *const *args, Py_ssize_t given);

#endif
