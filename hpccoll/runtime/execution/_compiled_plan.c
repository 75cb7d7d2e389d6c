/* The types of compiled plans and of the counters of their channels; see _module.c for an
 * overview. */
#include "_compiled_plan.h"
#include "_run.h"

/* ---- Counters -------------------------------------------------------------------------------- */

static PyMemberDef counters_members[] = {
    {"sent", T_LONGLONG, offsetof(Counters, sent), 0, "number of the last message sent"},
    {"received", T_LONGLONG, offsetof(Counters, received), 0, "number of the last one received"},
    {NULL}};

PyTypeObject CountersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Counters",
    .tp_doc = "Numbers of the last messages of a channel.",
    .tp_basicsize = sizeof(Counters),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_members = counters_members,
    .tp_new = PyType_GenericNew,
};

/* ---- CompiledPlan ---------------------------------------------------------------------------- */

/* Find the loop of a ufunc for two operands and a result of one type; 0 if there is none. */
static int find_loop(PyObject *object, PyObject *type, Kernel *kernel)
{
    if (!PyObject_TypeCheck(object, &PyUFunc_Type) || !PyArray_DescrCheck(type)) {
        return 0;
    }
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    PyArray_Descr *dtype = (PyArray_Descr *)type;
    if (ufunc->nin != 2 || ufunc->nout != 1 || ufunc->functions == NULL
        || !PyArray_ISNBO(dtype->byteorder)
        || !(PyTypeNum_ISNUMBER(dtype->type_num) || PyTypeNum_ISBOOL(dtype->type_num))) {
        return 0;
    }
    for (int i = 0; i < ufunc->ntypes; i++) {
        const char *types = ufunc->types + 3 * i;
        if (types[0] == dtype->type_num && types[1] == types[0] && types[2] == types[0]
            && ufunc->functions[i] != NULL) {
            kernel->loop = ufunc->functions[i];
            kernel->data = ufunc->data == NULL ? NULL : (void *)ufunc->data[i];
            kernel->itemsize = PyDataType_ELSIZE(dtype);
            return 1;
        }
    }
    return 0;
}

static void plan_dealloc(CompiledPlan *self)
{
    PyObject_GC_UnTrack(self);
    PyMem_Free(self->code);
    PyMem_Free(self->channels);
    PyMem_Free(self->counts);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->owners);
    Py_CLEAR(self->waiter);
    Py_TYPE(self)->tp_free(self);
}

static int plan_traverse(CompiledPlan *self, visitproc visit, void *arg)
{
    Py_VISIT(self->memory);
    Py_VISIT(self->owners);
    Py_VISIT(self->waiter);
    return 0;
}

static int plan_clear(CompiledPlan *self)
{
    set_none(&self->waiter); /* the other references are memory, which must outlive the runs */
    return 0;
}

static int read_channels(CompiledPlan *self, PyObject *channels)
{
    self->channel_count = PyTuple_GET_SIZE(channels);
    self->channels = PyMem_Calloc(self->channel_count + 1, sizeof(Channel));
    if (self->channels == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->channel_count; i++) {
        Counters *counters;
        long long line, taken, small, cells, cell_bytes, process, regions, column;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(channels, i), "O!LLLLLLLL", &CountersType, &counters,
                              &line, &taken, &small, &cells, &cell_bytes, &process, &regions,
                              &column)) {
            return -1;
        }
        Channel channel = {counters,
                           (Word *)(intptr_t)line,
                           (Word *)(intptr_t)taken,
                           (char *)(intptr_t)small,
                           (char *)(intptr_t)cells,
                           cell_bytes,
                           process,
                           (int64_t *)(intptr_t)regions,
                           column};
        self->channels[i] = channel;
    }
    return 0;
}

/* Read the kernel: None, a ufunc and a type, or a kernel for 16-bit floats. */
static int read_kernel(CompiledPlan *self, PyObject *kernel)
{
    PyObject *ufunc, *dtype;
    if (kernel == Py_None) {
        return 0;
    }
    if (PyTuple_Check(kernel)) {
        if (!PyArg_ParseTuple(kernel, "OO", &ufunc, &dtype)) {
            return -1;
        }
        if (find_loop(ufunc, dtype, &self->kernel)) {
            return 0;
        }
        PyErr_SetString(PyExc_TypeError, "this ufunc has no loop for this type");
        return -1;
    }
    PyObject *module = PyImport_ImportModule("hpccoll.arrays._half");
    PyObject *type = module != NULL ? PyObject_GetAttrString(module, "Kernel") : NULL;
    int fits = type != NULL ? PyObject_IsInstance(kernel, type) : -1;
    Py_XDECREF(module);
    Py_XDECREF(type);
    if (fits <= 0) {
        if (!fits) {
            PyErr_SetString(PyExc_TypeError, "this is no kernel");
        }
        return -1;
    }
    self->kernel.half = (const HalfKernel *)kernel;
    self->kernel.itemsize = 2;
    return 0;
}

/* Return the memory of an array, and keep it in place while the plan exists; NULL on an error. */
static const Py_buffer *hold_memory(CompiledPlan *self, PyObject *object)
{
    PyObject *view = PyMemoryView_GetContiguous(object, PyBUF_WRITE, 'C');
    int failed = view == NULL || PyList_Append(self->memory, view) < 0;
    Py_XDECREF(view);
    return failed ? NULL : PyMemoryView_GET_BUFFER(view);
}

/* Return a copy, which keeps its operands while those of the original change. */
CompiledPlan *copy_plan(const CompiledPlan *plan)
{
    size_t code_bytes = plan->length * WIDTH * sizeof(int64_t);
    size_t channel_bytes = (plan->channel_count + 1) * sizeof(Channel);
    size_t count_bytes = plan->counts != NULL ? (1 + plan->counts[0]) * sizeof(int64_t) : 0;
    CompiledPlan *copy = (CompiledPlan *)CompiledPlanType.tp_alloc(&CompiledPlanType, 0);
    if (copy == NULL) {
        return NULL;
    }
    memcpy((char *)copy + sizeof(PyObject), (const char *)plan + sizeof(PyObject),
           sizeof(CompiledPlan) - sizeof(PyObject));
    copy->code = PyMem_Malloc(code_bytes);
    copy->channels = PyMem_Malloc(channel_bytes);
    copy->counts = count_bytes ? PyMem_Malloc(count_bytes) : NULL;
    Py_XINCREF(copy->memory);
    Py_XINCREF(copy->owners);
    Py_XINCREF(copy->waiter);
    if (copy->code == NULL || copy->channels == NULL || (count_bytes && copy->counts == NULL)) {
        Py_DECREF(copy);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy->code, plan->code, code_bytes);
    memcpy(copy->channels, plan->channels, channel_bytes);
    if (count_bytes) {
        memcpy(copy->counts, plan->counts, count_bytes);
    }
    return copy;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code",   "sizes",       "channels", "kernel",    "scratch",
                            "owners", "waiter",      "yields",   "call_hash", "log",
                            "alarm",  "accumulator", NULL};
    Py_buffer code;
    const Py_buffer *held;
    long long in, out, call_hash = 0, log = 0, alarm = 0;
    PyObject *channels, *kernel, *memory, *owners, *waiter;
    PyObject *accumulator = Py_None;
    int yields;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*(LL)O!OOOOp|LLLO", names, &code, &in, &out,
                                     &PyTuple_Type, &channels, &kernel, &memory, &owners, &waiter,
                                     &yields, &call_hash, &log, &alarm, &accumulator)) {
        return NULL;
    }
    CompiledPlan *self = (CompiledPlan *)type->tp_alloc(type, 0);
    if (self == NULL || (self->memory = PyList_New(0)) == NULL
        || (held = hold_memory(self, memory)) == NULL) {
        goto failed;
    }
    self->scratch = held->buf;
    int64_t sizes[CELL] = {in, out, held->len};
    memcpy(self->sizes, sizes, sizeof sizes);
    if (accumulator != Py_None) {
        if ((held = hold_memory(self, accumulator)) == NULL) {
            goto failed;
        }
        self->accumulator = held->buf;
        self->accumulator_bytes = held->len;
    }
    self->owners = PyTuple_Pack(4, owners, channels, kernel, accumulator);
    self->waiter = Py_NewRef(waiter);
    self->spins = yields ? 0 : SPINS;
    self->call_hash.value = call_hash;
    self->log = (Word *)(intptr_t)log;
    self->alarm = (Word *)(intptr_t)alarm;
    self->length = code.len / (WIDTH * (Py_ssize_t)sizeof(int64_t));
    self->code = PyMem_Malloc(code.len + 1);
    if (self->owners == NULL || self->code == NULL || read_channels(self, channels) < 0
        || read_kernel(self, kernel) < 0) {
        goto failed;
    }
    memcpy(self->code, code.buf, code.len);
    const char *problem =
        code.len % (WIDTH * sizeof(int64_t)) ? "half an instruction" : check_plan(self);
    if (problem != NULL) {
        PyErr_Format(PyExc_ValueError, "the compiled plan has %s", problem);
        goto failed;
    }
    mark_messages(self);
    PyBuffer_Release(&code);
    return (PyObject *)self;
failed:
    PyBuffer_Release(&code);
    if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    Py_XDECREF(self);
    return NULL;
}

static PyObject *plan_run(CompiledPlan *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers = NULL;
    if (!PyArg_ParseTuple(args, "LL|O", &in, &out, &buffers)
        || play(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *plan_begin(CompiledPlan *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers = NULL;
    if (!PyArg_ParseTuple(args, "LL|O", &in, &out, &buffers)) {
        return NULL;
    }
    return (PyObject *)new_run(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers);
}

static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run, METH_VARARGS,
     "Run to the end, on input and output at addresses; a third argument keeps them alive."},
    {"begin", (PyCFunction)plan_begin, METH_VARARGS,
     "Return a run on input and output at addresses, which ``advance`` progresses."},
    {NULL}};

static PyMemberDef plan_members[] = {
    {"owners", T_OBJECT, offsetof(CompiledPlan, owners), READONLY,
     "objects that the plan keeps alive"},
    {"copy_cost", T_LONGLONG, offsetof(CompiledPlan, copy_cost), 0,
     "picoseconds a byte that recent copies of long messages took"},
    {NULL}};

PyTypeObject CompiledPlanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.CompiledPlan",
    .tp_doc = "Checked instructions, with their channels and scratch.",
    .tp_basicsize = sizeof(CompiledPlan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = plan_methods,
    .tp_members = plan_members,
    .tp_new = plan_new,
    .tp_dealloc = (destructor)plan_dealloc,
    .tp_traverse = (traverseproc)plan_traverse,
    .tp_clear = (inquiry)plan_clear,
};

PyObject *has_loop(PyObject *module, PyObject *args)
{
    PyObject *ufunc, *dtype;
    Kernel kernel;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &ufunc, &dtype)) {
        return NULL;
    }
    return PyBool_FromLong(find_loop(ufunc, dtype, &kernel));
}
