/* Methods whose calls are counted and timed; see _module.c for an overview. */
#include "_arguments.h"
#include "_method.h"
#include "_profiled.h"
#include <time.h>

/* Numbers per call: its kind, its start, its end; rows of the buffer of calls. */
enum { NUMBERS = 3, ROWS = 4096 };
enum { FIRST_KEYS = 64, MOST_KEYS = 4096 };

typedef struct {
    PyObject_HEAD
    size_t count;
    PyObject *full; /* called with the bytes of the rows when the buffer is full */
    double rows[ROWS][NUMBERS];
} CallRows;

typedef struct {
    uint64_t key;
    long kind;
} KnownKind;

typedef struct {
    PyObject_HEAD
    KnownKind *slots;
    size_t slot_count, used;
    CallRows *rows;
    char reported; /* the algorithm of a call was reported: its kind is looked up again */
} Seen;

static PyObject *seen_name;

static double seconds(void)
{
    struct timespec now; /* clock of time.perf_counter */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- CallRows -------------------------------------------------------------------------------- */

static PyObject *rows_drain(CallRows *self, PyObject *Py_UNUSED(none))
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)self->rows,
                                                (Py_ssize_t)(self->count * sizeof self->rows[0]));
    if (bytes != NULL) {
        self->count = 0;
    }
    return bytes;
}

static int push(CallRows *self, long kind, double start, double stop)
{
    double *row = self->rows[self->count++];
    row[0] = (double)kind;
    row[1] = start;
    row[2] = stop;
    if (self->count < ROWS) {
        return 0;
    }
    PyObject *bytes = rows_drain(self, NULL);
    self->count = 0; /* without memory the rows are dropped: the buffer is full */
    PyObject *done = bytes == NULL ? NULL : PyObject_CallOneArg(self->full, bytes);
    Py_XDECREF(bytes);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *full;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O", &full)) {
        return NULL;
    }
    CallRows *self = (CallRows *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->full = Py_NewRef(full);
    }
    return (PyObject *)self;
}

static int rows_traverse(CallRows *self, visitproc visit, void *arg)
{
    Py_VISIT(self->full);
    return 0;
}

static int rows_clear(CallRows *self)
{
    set_none(&self->full);
    return 0;
}

static void rows_dealloc(CallRows *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->full);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef rows_methods[] = {
    {"drain", (PyCFunction)rows_drain, METH_NOARGS, "Take the rows away, as bytes."}, {NULL}};

PyTypeObject CallRowsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.CallRows",
    .tp_doc = "The last calls of a communicator: kind, beginning, end.",
    .tp_basicsize = sizeof(CallRows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = rows_methods,
    .tp_new = rows_new,
    .tp_dealloc = (destructor)rows_dealloc,
    .tp_traverse = (traverseproc)rows_traverse,
    .tp_clear = (inquiry)rows_clear,
};

/* ---- Seen ------------------------------------------------------------------------------------ */

static KnownKind *slot_of(KnownKind *slots, size_t count, uint64_t key)
{
    size_t at = key & (count - 1);
    while (slots[at].key && slots[at].key != key) {
        at = (at + 1) & (count - 1);
    }
    return &slots[at];
}

static int seen_resize(Seen *self, size_t count, int keeping)
{
    KnownKind *slots = PyMem_Calloc(count, sizeof *slots);
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; keeping && i < self->slot_count; i++) {
        if (self->slots[i].key) {
            *slot_of(slots, count, self->slots[i].key) = self->slots[i];
        }
    }
    self->used = keeping ? self->used : 0;
    PyMem_Free(self->slots);
    self->slots = slots;
    self->slot_count = count;
    return 0;
}

static PyObject *seen_learn(Seen *self, PyObject *args)
{
    unsigned long long key;
    long kind;
    if (!PyArg_ParseTuple(args, "Kl", &key, &kind)) {
        return NULL;
    }
    if (self->used >= MOST_KEYS && seen_resize(self, FIRST_KEYS, 0) < 0) {
        return NULL;
    }
    if (2 * self->used >= self->slot_count && seen_resize(self, 2 * self->slot_count, 1) < 0) {
        return NULL;
    }
    KnownKind *slot = slot_of(self->slots, self->slot_count, key);
    self->used += !slot->key;
    slot->key = key;
    slot->kind = kind;
    Py_RETURN_NONE;
}

static PyObject *seen_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *rows;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!", &CallRowsType, &rows)) {
        return NULL;
    }
    Seen *self = (Seen *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->rows = (CallRows *)Py_NewRef(rows);
    if (seen_resize(self, FIRST_KEYS, 0) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int seen_traverse(Seen *self, visitproc visit, void *arg)
{
    Py_VISIT(self->rows);
    return 0;
}

static void seen_dealloc(Seen *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->rows);
    PyMem_Free(self->slots);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef seen_methods[] = {{"learn", (PyCFunction)seen_learn, METH_VARARGS,
                                      "Note of which kind the calls with a key are."},
                                     {NULL}};

static PyMemberDef seen_members[] = {{"reported", T_BOOL, offsetof(Seen, reported), 0,
                                      "the kind of the next call is looked up again"},
                                     {NULL}};

PyTypeObject SeenType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Seen",
    .tp_doc = "Kinds of calls, by their arguments.",
    .tp_basicsize = sizeof(Seen),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = seen_methods,
    .tp_members = seen_members,
    .tp_new = seen_new,
    .tp_dealloc = (destructor)seen_dealloc,
    .tp_traverse = (traverseproc)seen_traverse,
};

/* ---- Watched --------------------------------------------------------------------------------- */

static inline uint64_t mixed(uint64_t key, uint64_t more)
{
    key = (key ^ more) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

static uint64_t mix_argument(uint64_t key, PyObject *one, int depth)
{
    if (Py_IS_TYPE(one, &PyArray_Type)) {
        PyArrayObject *array = (PyArrayObject *)one;
        return mixed(mixed(key, (uint64_t)PyArray_NBYTES(array)), (uint64_t)PyArray_TYPE(array));
    }
    if (PyLong_CheckExact(one)) {
        int overflow;
        return mixed(key, (uint64_t)PyLong_AsLongLongAndOverflow(one, &overflow));
    }
    if (PyList_CheckExact(one) || PyTuple_CheckExact(one)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(one);
        key = mixed(key, (uint64_t)size);
        for (Py_ssize_t i = 0; depth && i < size && i < 4; i++) {
            key = mix_argument(key, PySequence_Fast_GET_ITEM(one, i), depth - 1);
        }
        return key;
    }
    uint64_t nbytes, type;
    if (read_buffer_kind(one, &nbytes, &type)) {
        return mixed(mixed(key, nbytes), type);
    }
    return mixed(key, (uint64_t)(uintptr_t)one);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *method, *first, *slow, *attributes;
    long root_at; /* the only argument in the key, for methods of objects; -1 for none .. */
    int objects;  /* .. if it is one */
} WatchedMethod;

static uint64_t key_of(const WatchedMethod *self, PyObject *const *args, Py_ssize_t given,
                       PyObject *names)
{
    uint64_t key = mixed(1, (uint64_t)(uintptr_t)self);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 1; i < given; i++) {
        if (!self->objects || i == self->root_at + 1) {
            key = mix_argument(key, args[i], 1);
        }
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        key = mixed(key, (uint64_t)(uintptr_t)PyTuple_GET_ITEM(names, i));
        if (!self->objects || PyLong_CheckExact(args[given + i])) {
            key = mix_argument(key, args[given + i], 1);
        }
    }
    return key ? key : 1;
}

static int note_slowly(WatchedMethod *self, uint64_t key, double start, double stop,
                       PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *positional = PyTuple_New(given - 1), *by_name = PyDict_New(), *done = NULL;
    if (positional == NULL || by_name == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 1; i < given; i++) {
        PyTuple_SET_ITEM(positional, i - 1, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(by_name, PyTuple_GET_ITEM(names, i), args[given + i]) < 0) {
            goto end;
        }
    }
    done = PyObject_CallFunction(self->slow, "OKddOO", args[0], (unsigned long long)key, start,
                                 stop, positional, by_name);
end:
    Py_XDECREF(positional);
    Py_XDECREF(by_name);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *watched_call(WatchedMethod *self, PyObject *const *args, size_t flags,
                              PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *found = given ? PyObject_GetAttr(args[0], seen_name) : NULL;
    if (found == NULL) {
        PyErr_Clear();
        return PyObject_Vectorcall(self->method, args, flags, names);
    }
    if (found == Py_None) {
        Py_SETREF(found, PyObject_CallOneArg(self->first, args[0]));
        if (found == NULL) {
            return NULL;
        }
    }
    if (!Py_IS_TYPE(found, &SeenType)) {
        Py_DECREF(found);
        return PyErr_Format(PyExc_TypeError, "calls are not recorded there");
    }
    Seen *seen = (Seen *)found;
    double start = seconds();
    PyObject *result = PyObject_Vectorcall(self->method, args, flags, names);
    double stop = seconds();
    if (result != NULL) {
        uint64_t key = key_of(self, args, given, names);
        KnownKind *slot = slot_of(seen->slots, seen->slot_count, key);
        int failed = slot->key && !seen->reported
                         ? push(seen->rows, slot->kind, start, stop)
                         : note_slowly(self, key, start, stop, args, given, names);
        if (failed) {
            Py_CLEAR(result);
        }
    }
    Py_DECREF(found);
    return result;
}

static PyObject *watched_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *method, *first, *slow;
    long root_at;
    int objects;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOOlp", &method, &first, &slow, &root_at, &objects)) {
        return NULL;
    }
    WatchedMethod *self = (WatchedMethod *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)watched_call;
    self->method = Py_NewRef(method);
    self->first = Py_NewRef(first);
    self->slow = Py_NewRef(slow);
    self->root_at = root_at;
    self->objects = objects;
    return (PyObject *)self;
}

static int watched_traverse(WatchedMethod *self, visitproc visit, void *arg)
{
    Py_VISIT(self->method);
    Py_VISIT(self->first);
    Py_VISIT(self->slow);
    Py_VISIT(self->attributes);
    return 0;
}

static int watched_clear(WatchedMethod *self)
{
    set_none(&self->method);
    set_none(&self->first);
    set_none(&self->slow);
    Py_CLEAR(self->attributes);
    return 0;
}

static void watched_dealloc(WatchedMethod *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->method);
    Py_XDECREF(self->first);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->attributes);
    Py_TYPE(self)->tp_free(self);
}

static PyGetSetDef watched_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};

PyTypeObject WatchedMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.WatchedMethod",
    .tp_doc = NULL,
    .tp_basicsize = sizeof(WatchedMethod),
    .tp_vectorcall_offset = offsetof(WatchedMethod, vectorcall),
    .tp_dictoffset = offsetof(WatchedMethod, attributes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = bind_method,
    .tp_getset = watched_attributes,
    .tp_new = watched_new,
    .tp_dealloc = (destructor)watched_dealloc,
    .tp_traverse = (traverseproc)watched_traverse,
    .tp_clear = (inquiry)watched_clear,
};

int prepare_watching(void)
{
    seen_name = PyUnicode_InternFromString("_seen");
    return seen_name == NULL ? -1 : 0;
}
