/* The ring of events; see _module.c for an overview. */
#include "_events.h"

_Static_assert(sizeof(Event) == 64, "an event fills a line of the cache");

EventRing event_ring;

/* Set the ring: its memory begins with a row that has the number of events so far. */
PyObject *set_ring(PyObject *module, PyObject *args)
{
    static Py_buffer held[3];
    Py_buffer ring, ordered, sums;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*w*w*", &ring, &ordered, &sums)) {
        return NULL;
    }
    int64_t kept = ring.len / (int64_t)sizeof(Event) - 1;
    if (kept < 1 || kept & (kept - 1) || (kept + 1) * (int64_t)sizeof(Event) != ring.len) {
        PyBuffer_Release(&ring);
        PyBuffer_Release(&ordered);
        PyBuffer_Release(&sums);
        return PyErr_Format(PyExc_ValueError, "a ring has a power of two of rows");
    }
    event_ring = (EventRing){(Event *)ring.buf + 1, ring.buf, kept - 1, ordered.buf, sums.buf};
    Py_buffer new[] = {ring, ordered, sums};
    for (int i = 0; i < 3; i++) {
        PyBuffer_Release(&held[i]);
        held[i] = new[i];
    }
    Py_RETURN_NONE;
}

/* Record an event of Python's. */
PyObject *record_event(PyObject *module, PyObject *args)
{
    long long start, stop, number, what, detail, nbytes;
    Event event;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLiiLLLLd", &start, &stop, &event.type, &event.comm, &number,
                          &what, &detail, &nbytes, &event.sent)) {
        return NULL;
    }
    event.start = start;
    event.stop = stop;
    event.number = number;
    event.what = what;
    event.detail = detail;
    event.nbytes = nbytes;
    add_event(event);
    Py_RETURN_NONE;
}

/* Record a call that Python has timed. */
PyObject *record_call(PyObject *module, PyObject *args)
{
    int comm, ordered;
    long long kind, start, stop;
    (void)module;
    if (!PyArg_ParseTuple(args, "iLLLp", &comm, &kind, &start, &stop, &ordered)) {
        return NULL;
    }
    add_call(comm, kind, start, stop, ordered);
    Py_RETURN_NONE;
}
