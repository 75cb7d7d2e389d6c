/* Actions of the interpreter without operands that record events.

     opening  record the start of a call in this rank's log, then check for failures of other ranks
     closing  record the end of the call
     phase    record the start of an activity
     amid     record the start and the end of work inside a wait */
#include "_call_log.h"
#include "_notes.h"

typedef struct Note {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Word *log;
    int64_t where, activity, after;
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

static PyObject *phase_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    (void)args, (void)flags, (void)names;
    add_phase(self->where, self->activity);
    Py_RETURN_NONE;
}

static PyObject *amid_call(Note *self, PyObject *const *args, size_t flags, PyObject *names)
{
    add_phase(self->where, self->activity);
    PyObject *result = PyObject_Vectorcall(self->function, args, flags, names);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result); /* an action with a result is not a test */
    add_phase(self->where, self->after);
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

PyObject *note_phase(PyObject *module, PyObject *args)
{
    long long where, activity;
    (void)module;
    if (!PyArg_ParseTuple(args, "LL", &where, &activity)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)phase_call, NULL, Py_None);
    if (self != NULL) {
        self->where = where;
        self->activity = activity;
    }
    return (PyObject *)self;
}

PyObject *note_amid(PyObject *module, PyObject *args)
{
    long long where, activity, after;
    PyObject *function;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLLO", &where, &activity, &after, &function)) {
        return NULL;
    }
    Note *self = new_note((vectorcallfunc)amid_call, function, Py_None);
    if (self != NULL) {
        self->where = where;
        self->activity = activity;
        self->after = after;
    }
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
