/* A rank's log of calls, and methods of the MPI library whose calls are recorded in it. */
#ifndef HPCCOLL_CALL_LOG_H
#define HPCCOLL_CALL_LOG_H

#include "_events.h"
#include <stddef.h>

/* Words of the log, as in hpccoll/runtime/events/call_log.py: the alarm after a failure; the number
 * of calls, the number of the pending native call, that of the next call with a check behind it;
 * and the last calls, events whose fields are their call hash, the hash of their form and their
 * amount. */
enum {
    ALARM = 0,
    NUMBER = 16,
    INSIDE = 17,
    CHECK = 22,
    CALLS = 32,
    REMEMBERED = 64,
};

/* Call hash of a call: of all its fields; of its form, which excludes the amount of data, or 0 if
 * the call hash itself is that of a description; and the amount. */
typedef struct {
    int64_t value, form, amount;
} CallHash;

/* The word of an event's field. Other processes read the words while this one writes them. */
#define WORD_OF(field) (offsetof(Event, field) / sizeof(Word))

static inline Word *logged_call(Word *log, int64_t number)
{
    return log + CALLS + (number & (REMEMBERED - 1)) * (sizeof(Event) / sizeof(Word));
}

/* Record the start of a call with its call hash in a log. */
static inline void note_start(Word *log, int64_t number, CallHash call_hash)
{
    Word *call = logged_call(log, number);
    atomic_store_explicit(&call[WORD_OF(what)], call_hash.value, memory_order_relaxed);
    if (call_hash.form) { /* otherwise an old form stays, which does not give this call hash */
        atomic_store_explicit(&call[WORD_OF(detail)], call_hash.form, memory_order_relaxed);
        atomic_store_explicit(&call[WORD_OF(nbytes)], call_hash.amount, memory_order_relaxed);
    }
    atomic_store_explicit(&call[WORD_OF(start)], last_tick(), memory_order_relaxed);
    atomic_store_explicit(&call[WORD_OF(stop)], 0, memory_order_relaxed);
}

/* Record the end of a call. */
static inline void note_end(Word *log, int64_t number)
{
    atomic_store_explicit(&logged_call(log, number)[WORD_OF(stop)], last_tick(),
                          memory_order_relaxed);
}

/* Native method whose calls are recorded in the log. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *method, *raise_failure, *failed, *check;
    Word *log, *alarm;
    CallHash call_hash;
} Noted;

extern PyTypeObject NotedType;

Noted *copy_noted(const Noted *noted);

#endif
