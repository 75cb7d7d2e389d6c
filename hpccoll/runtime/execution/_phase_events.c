/* Actions of the interpreter without operands that record events, implemented in C.

     opening  record the start of a call in this rank's log, then check for failures of other ranks
     closing  record the end of the call
     moment   record the start of an activity
     amid     record the start and the end of work inside a wait */
#include "_call_log.h"
#include "_moments.h"
#include "_phase_events.h"

typedef struct Note {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Word *log;
    int64_t *moments;
    int64_t kept, where, what, after;
    CallHash call_hash;
    PyObject *function, *owner; /* the function to call, or NULL; the owner of the memory */
} Note;

static PyObject *opening_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    (void)args, (void)flags, (void)names;
    Word *log = self->log;
    int64_t number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
    note_start(log, number, self->call_hash);
    atomic_store_explicit(&log[NUMBER], number, memory_order_release);
    if (atomic_load_explicit(&log[ALARM], memory_order_acquire)) {
        return PyObject_CallOneArg(self->function, Py_True);
    }
    Py_RETURN_NONE;
}

static PyObject *closing_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    (void)args, (void)flags, (void)names;
    note_end(self->log, atomic_load_explicit(&self->log[NUMBER], memory_order_relaxed));
    Py_RETURN_NONE;
}

static PyObject *moment_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    (void)args, (void)flags, (void)names;
    note_moment(self->moments, self->kept, self->where, self->what);
    Py_RETURN_NONE;
}

static PyObject *amid_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    note_moment(self->moments, self->kept, self->where, self->what);
    PyObject *result = PyObject_Vectorcall(self->function, args, flags, names);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result); /* an action with a result is not a test */
    note_moment(self->moments, self->kept, self->where, self->after);
    Py_RETURN_NONE;
}

static Note *new_note(vectorcallfunc call, PyObject *function, PyObject *owner)
{
    Note *self = (Note *)NoteType.tp_alloc(&NoteType, 0);
    if (self != NULL) {
        self->vectorcall = call;
        self->function = Py_XNewRef(function);
        self->owner = Py_NewRef(owner);
    }
    return self;
}

PyObject *note_opening(PyObject *module, PyObject *args)
{
    long long log, call_hash;
    PyObject *on_alarm, *owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLOO", &log, &call_hash, &on_alarm, &owner)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)opening_call, on_alarm, owner);
    if (self != NULL) {
        self->log = (Word *)(intptr_t)log;
        self->call_hash.value = call_hash;
    }
    return (PyObject *)self;
}

PyObject *note_closing(PyObject *module, PyObject *args)
{
    long long log;
    PyObject *owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "LO", &log, &owner)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)closing_call, NULL, owner);
    if (self != NULL) {
        self->log = (Word *)(intptr_t)log;
    }
    return (PyObject *)self;
}

/* Read a ring of moments: its address and its number of rows, a power of two. */
static int read_ring(Note *self, long long address, long long kept)
{
    if (kept < 1 || kept & (kept - 1)) {
        PyErr_SetString(PyExc_ValueError, "a ring has a power of two of rows");
        return -1;
    }
    self->moments = (int64_t *)(intptr_t)address;
    self->kept = kept;
    return 0;
}

PyObject *note_moments(PyObject *module, PyObject *args)
{
    long long address, kept, where, what;
    PyObject *owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLLLO", &address, &kept, &where, &what, &owner)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)moment_call, NULL, owner);
    if (self == NULL || read_ring(self, address, kept) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    self->where = where;
    self->what = what;
    return (PyObject *)self;
}

PyObject *note_amid(PyObject *module, PyObject *args)
{
    long long address, kept, where, what, after;
    PyObject *function, *owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLLLLOO", &address, &kept, &where, &what, &after, &function,
                          &owner)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)amid_call, function, owner);
    if (self == NULL || read_ring(self, address, kept) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    self->where = where;
    self->what = what;
    self->after = after;
    return (PyObject *)self;
}

static int note_clear(Note *self)
{
    if (self->function != NULL) {
        set_none(&self->function);
    }
    return 0; /* the owner's memory must outlive the calls */
}

static void note_dealloc(Note *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->function);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free(self);
}

static int note_traverse(Note *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    return 0;
}

PyTypeObject NoteType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Note",
    .tp_doc = "Callback that records an event.",
    .tp_basicsize = sizeof(Note),
    .tp_vectorcall_offset = offsetof(Note, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)note_dealloc,
    .tp_traverse = (traverseproc)note_traverse,
    .tp_clear = (inquiry)note_clear,
};
