/* Native MPI calls that are recorded in this rank's log while they run; see _module.c. */
#include "_call_log.h"

#if PY_VERSION_HEX < 0x030C0000 /* calls of Python 3.12, where those below are deprecated */
static PyObject *PyErr_GetRaisedException(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

static void PyErr_SetRaisedException(PyObject *error)
{
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
}
#endif

/* Handle a failed call: `failed` raises a more specific error, or returns true if nothing was sent,
 * so that the call does not count. */
static void handle_failure(const Noted *self, int64_t number)
{
    PyObject *error = PyErr_GetRaisedException();
    PyObject *unsent = PyObject_CallOneArg(self->failed, error);
    if (unsent == NULL) {
        Py_DECREF(error);
        return;
    }
    if (unsent == Py_True) {
        atomic_store_explicit(&self->log[NUMBER], number - 1, memory_order_release);
    }
    Py_DECREF(unsent);
    PyErr_SetRaisedException(error);
}

static PyObject *noted_call(Noted *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Word *log = self->log;
    int64_t number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
    note_start(log, number, self->call_hash);
    atomic_store_explicit(&log[INSIDE], number, memory_order_relaxed);
    atomic_store_explicit(&log[NUMBER], number, memory_order_release);
    int64_t alarm = atomic_load_explicit(self->alarm, memory_order_acquire);
    PyObject *result = alarm && number >= alarm - 1
                           ? PyObject_CallNoArgs(self->raise_failure)
                           : PyObject_Vectorcall(self->method, args, flags, names);
    atomic_store_explicit(&log[INSIDE], 0, memory_order_relaxed);
    if (result == NULL) {
        handle_failure(self, number);
        return NULL;
    }
    note_end(log, number);
    int64_t check = atomic_load_explicit(&log[CHECK], memory_order_relaxed);
    if (check && number >= check && self->check != Py_None) {
        PyObject *checked = PyObject_Vectorcall(self->check, args, flags, names);
        if (checked == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(checked);
    }
    return result;
}

static PyObject *noted_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *method, *raise_failure, *failed, *check;
    long long log, alarm, call_hash;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OLLLOOO", &method, &log, &alarm, &call_hash, &raise_failure,
                          &failed, &check)) {
        return NULL;
    }
    Noted *self = (Noted *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)noted_call;
    self->method = Py_NewRef(method);
    self->raise_failure = Py_NewRef(raise_failure);
    self->failed = Py_NewRef(failed);
    self->check = Py_NewRef(check);
    self->log = (Word *)(intptr_t)log;
    self->alarm = (Word *)(intptr_t)alarm;
    self->call_hash.value = call_hash;
    return (PyObject *)self;
}

/* Return another one for the same method. */
Noted *copy_noted(const Noted *noted)
{
    Noted *copy = (Noted *)NotedType.tp_alloc(&NotedType, 0);
    if (copy == NULL) {
        return NULL;
    }
    copy->vectorcall = noted->vectorcall;
    copy->method = Py_NewRef(noted->method);
    copy->raise_failure = Py_NewRef(noted->raise_failure);
    copy->failed = Py_NewRef(noted->failed);
    copy->check = Py_NewRef(noted->check);
    copy->log = noted->log;
    copy->alarm = noted->alarm;
    copy->call_hash = noted->call_hash;
    return copy;
}

static int noted_clear(Noted *self)
{
    set_none(&self->method);
    set_none(&self->raise_failure);
    set_none(&self->failed);
    set_none(&self->check);
    return 0;
}

static void noted_dealloc(Noted *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->method);
    Py_XDECREF(self->raise_failure);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->check);
    Py_TYPE(self)->tp_free(self);
}

static int noted_traverse(Noted *self, visitproc visit, void *arg)
{
    Py_VISIT(self->method);
    Py_VISIT(self->raise_failure);
    Py_VISIT(self->failed);
    Py_VISIT(self->check);
    return 0;
}

PyTypeObject NotedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Noted",
    .tp_doc = "Method of the MPI library with calls that are recorded in this rank's log.",
    .tp_basicsize = sizeof(Noted),
    .tp_vectorcall_offset = offsetof(Noted, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_call = PyVectorcall_Call,
    .tp_new = noted_new,
    .tp_dealloc = (destructor)noted_dealloc,
    .tp_traverse = (traverseproc)noted_traverse,
    .tp_clear = (inquiry)noted_clear,
};
