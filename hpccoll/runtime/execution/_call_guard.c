/* Lock of a communicator that admits one call at a time; see _module.c for an overview. */
#include "_call_guard.h"

static PyObject *refusal;

/* Raise Python's error for a second concurrent call. */
int raise_refusal(const CallGuard *call_guard)
{
    PyObject *raised = refusal == NULL ? NULL
                                       : PyObject_CallFunction(refusal, "k",
                                                               call_guard->owner_thread
                                                                   ? call_guard->owner_thread
                                                                   : call_guard->outer_thread);
    Py_XDECREF(raised);
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "a call is pending");
    }
    return -1;
}

/* Set the function that raises an error for a second call, given the thread of the first. */
PyObject *set_refusal(PyObject *module, PyObject *function)
{
    (void)module;
    Py_XSETREF(refusal, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyObject *call_guard_enter(CallGuard *self, PyObject *Py_UNUSED(none))
{
    if (acquire(self) < 0) {
        return NULL;
    }
    return Py_NewRef(self);
}

static PyObject *call_guard_exit(CallGuard *self, PyObject *args)
{
    (void)args;
    self->owner_thread = 0;
    Py_RETURN_NONE;
}

static void call_guard_dealloc(CallGuard *self)
{
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef call_guard_methods[] = {
    {"__enter__", (PyCFunction)call_guard_enter, METH_NOARGS, "Begin a call, or raise."},
    {"__exit__", (PyCFunction)call_guard_exit, METH_VARARGS, "End it."},
    {NULL}};

static PyMemberDef call_guard_members[] = {
    {"owner_thread", T_ULONG, offsetof(CallGuard, owner_thread), 0,
     "the thread that makes a call, 0 for none"},
    {"outer_thread", T_ULONG, offsetof(CallGuard, outer_thread), 0,
     "the thread whose call makes calls that are part of it, 0 for none"},
    {NULL}};

PyTypeObject CallGuardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.CallGuard",
    .tp_doc = "Lets one call on a communicator go at a time.",
    .tp_basicsize = sizeof(CallGuard),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = call_guard_methods,
    .tp_members = call_guard_members,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)call_guard_dealloc,
};
