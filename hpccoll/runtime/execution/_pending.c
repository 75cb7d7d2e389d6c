/* The list of pending operations: calls give others a share of their wait. */
#include "_pending.h"

PyObject *pending_operations;

int set_pending(PyObject *list)
{
    if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "operations are no list");
        return -1;
    }
    Py_XSETREF(pending_operations, Py_NewRef(list));
    return 0;
}

/* Remove an operation to which the caller has a reference. The list keeps its room: a list that
 * shrinks allocates, which may fail. */
void remove_pending(PyObject *operation)
{
    PyObject **items = PySequence_Fast_ITEMS(pending_operations);
    Py_ssize_t count = PyList_GET_SIZE(pending_operations);
    for (Py_ssize_t i = count - 1; i >= 0; i--) {
        if (items[i] == operation) {
            memmove(items + i, items + i + 1, (count - 1 - i) * sizeof *items);
            Py_SET_SIZE(pending_operations, count - 1);
            Py_DECREF(operation);
            return;
        }
    }
}
