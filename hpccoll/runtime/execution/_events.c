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

/* Read the numbers of a call; return -1 with an error set. */
static int read_numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted,
                        int64_t *numbers)
{
    if (given < wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd numbers, got %zd", wanted, given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < wanted; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* Record an event of Python's: its fields, the type first. Not by PyArg_ParseTuple, which takes
 * longer than all else. */
PyObject *record_event(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    int64_t fields[8];
    (void)module;
    if (read_numbers(args, given - 1, 8, fields) < 0) {
        return NULL;
    }
    double sent = PyFloat_AsDouble(args[8]);
    if (sent == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    add_event((Event){fields[1], fields[2], (int32_t)fields[0], (int32_t)fields[3], fields[4],
                      fields[5], fields[6], fields[7], sent});
    Py_RETURN_NONE;
}

/* Record a call that Python has timed. */
PyObject *record_call(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    int64_t numbers[5];
    (void)module;
    if (read_numbers(args, given, 5, numbers) < 0) {
        return NULL;
    }
    add_call((int32_t)numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0);
    Py_RETURN_NONE;
}
