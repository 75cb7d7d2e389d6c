/* Compiled executor: runs compiled plans, caches calls, and implements their requests.
 *
 * A compiled plan is one rank's lowered program as a flat array of instructions (compiled_plan.py
 * makes and reads them). The executor implements the instructions, and the words that announce
 * messages in the channels of shared memory (hpccoll/transport/shm/channels.py). It does not depend
 * on MPI or on algorithms.
 *
 *     Counters     the numbers of a channel's last messages, shared with the interpreter
 *     Compiled plan         instructions, checked once; runs on any arrays of the right sizes
 *     Run          a running compiled plan, which stops at a missing message and resumes there
 *
 * _running.c:      runs the instructions, without Python
 *
 * _arguments.c:    reads the arguments of calls
 *
 * _recognition.c:
 *
 *     Calls        the cache of a communicator: form, size and type of a call -> a plan or the
 *                  native method
 *     Recognised   a method of the communicator that looks up Calls first
 *
 * _any_size.c:
 *
 *     AnySize      calls of one form and any size: a plan whose operands are computed for the size
 *
 * _requests.c:
 *
 *     CompiledRun      a run that one call starts and another one completes, with its state
 *
 * _background.c:  a thread that progresses such runs
 *
 * _profiled.c:
 *
 *     WatchedMethod  a method whose calls are counted and timed
 *
 * _conversions.c:
 *
 *     Numbers      allreduce of Python numbers
 *
 * _phase_events.c:
 *
 *     Note         an action of the interpreter that records a call, its end, or a moment
 *
 * _call_guard.c:
 *
 *     CallGuard     admits one call on a communicator at a time
 *
 * _finalize.c:
 *
 *     check_at_exit
 *                  checks during MPI_Finalize at exit that no process was killed
 *
 * All bounds are checked when a compiled plan is created, none while it runs.
 */
#define IMPORTS_ARRAY
#include "_requests.h"
#include "_recognition.h"

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

static int inside(const CompiledPlan *plan, int64_t address, int64_t nbytes, int64_t open)
{
    int64_t base = BASE(address), offset = OFFSET(address);
    if (address < 0 || base >= BASES || nbytes < 0 || (base == CELL && open < 0))
        return 0;
    int64_t size = base == CELL ? open : plan->sizes[base];
    return nbytes <= size && offset <= size - nbytes;
}

/* Return 1 if a message of a size fits a channel's cells, or its memory can be read. */
static int passes(const Channel *channel, int64_t nbytes)
{
    return channel->process || (nbytes <= channel->cell_bytes && nbytes <= LARGEST);
}

/* Check every instruction; return NULL or an error text. */
const char *check_plan(CompiledPlan *plan)
{
    int64_t open = -1, opened = -1, posted = 0, batches = 0;
    int under_way = 0;
    plan->sends = 0;
    for (Py_ssize_t at = 0; at < plan->length; at++) {
        const int64_t *step = plan->code + at * WIDTH;
        if ((step[0] == SEND || step[0] == TAKE || step[0] == TAKEN)
            && (step[2] < 0 || step[2] >= plan->channel_count))
            return "a channel that is not there";
        if (posted && step[0] != POST && step[0] != START)
            return "a batch that is not started";
        switch (step[0]) {
        case END:
            if (at != plan->length - 1 || open >= 0 || under_way)
                return "an end before the end";
            return NULL;
        case COPY:
            if (!inside(plan, step[2], step[4], -1) || !inside(plan, step[3], step[4], open))
                return "a copy out of bounds";
            break;
        case REDUCE: {
            int64_t size = plan->kernel.itemsize;
            if (!size)
                return "a kernel that is not there";
            if (step[6] < 0 || step[6] > INT64_MAX / size)
                return "a reduction of too many elements";
            if (step[2] && (plan->kernel.half == NULL || step[2] < 0 || step[2] >= 2 * ROUNDED
                            || step[6] > plan->accumulator_bytes / 4))
                return "an accumulator that is not there";
            if (!inside(plan, step[3], step[6] * size, -1)
                || !inside(plan, step[4], step[6] * size, open)
                || !inside(plan, step[5], step[6] * size, open)
                || OFFSET(step[3]) % size || OFFSET(step[4]) % size || OFFSET(step[5]) % size)
                return "a reduction out of bounds";
            break;
        }
        case SEND:
            if (!inside(plan, step[3], step[4], -1) || !passes(&plan->channels[step[2]], step[4]))
                return "a message out of bounds";
            plan->sends++;
            break;
        case FLUSH:
            break;
        case NOTE:
            if (plan->moments == NULL)
                return "a moment that nobody wants";
            break;
        case TAKE:  /* a message that is not in its cell is received at its landing */
            if (open >= 0 || !inside(plan, step[3], step[4], -1)
                || !passes(&plan->channels[step[2]], step[4]))
                return "a message out of bounds";
            open = step[4];
            opened = step[2];
            break;
        case TAKEN:
            if (open < 0 || opened != step[2])
                return "a message is given back that was not taken";
            open = -1;
            break;
        case POST:
            if (open >= 0 || under_way || !inside(plan, step[3], step[4], -1))
                return "a message out of bounds";
            posted++;
            break;
        case START:
            if (!posted || step[2] != batches)
                return "a batch of no messages, or of another number";
            posted = 0;
            plan->remote = under_way = 1;
            break;
        case AWAIT:
            if (open >= 0 || !under_way || step[2] != batches++)
                return "a batch that is not under way";
            under_way = 0;
            break;
        default:
            return "an unknown instruction";
        }
    }
    return "no end";
}

/* Find the loop of a ufunc for two operands and a result of one type; 0 if there is none. */
static int find_loop(PyObject *object, PyObject *type, Kernel *kernel)
{
    if (!PyObject_TypeCheck(object, &PyUFunc_Type) || !PyArray_DescrCheck(type))
        return 0;
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    PyArray_Descr *dtype = (PyArray_Descr *)type;
    if (ufunc->nin != 2 || ufunc->nout != 1 || ufunc->functions == NULL
        || !PyArray_ISNBO(dtype->byteorder)
        || !(PyTypeNum_ISNUMBER(dtype->type_num) || PyTypeNum_ISBOOL(dtype->type_num)))
        return 0;
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
    Py_CLEAR(self->waiter);  /* the other references are memory, which must outlive the runs */
    return 0;
}

static int read_channels(CompiledPlan *self, PyObject *channels)
{
    self->channel_count = PyTuple_GET_SIZE(channels);
    self->channels = PyMem_Calloc(self->channel_count + 1, sizeof(Channel));
    if (self->channels == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < self->channel_count; i++) {
        Counters *counters;
        long long line, taken, small, cells, cell_bytes, process, regions, column;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(channels, i), "O!LLLLLLLL", &CountersType, &counters,
                              &line, &taken, &small, &cells, &cell_bytes, &process, &regions,
                              &column))
            return -1;
        Channel channel = {counters, (Word *)(intptr_t)line, (Word *)(intptr_t)taken,
                           (char *)(intptr_t)small, (char *)(intptr_t)cells, cell_bytes, process,
                           (int64_t *)(intptr_t)regions, column};
        self->channels[i] = channel;
    }
    return 0;
}

/* Read the kernel: None, a ufunc and a type, or a kernel for 16-bit floats. */
static int read_kernel(CompiledPlan *self, PyObject *kernel)
{
    PyObject *ufunc, *dtype;
    if (kernel == Py_None)
        return 0;
    if (PyTuple_Check(kernel)) {
        if (!PyArg_ParseTuple(kernel, "OO", &ufunc, &dtype))
            return -1;
        if (find_loop(ufunc, dtype, &self->kernel))
            return 0;
        PyErr_SetString(PyExc_TypeError, "this ufunc has no loop for this type");
        return -1;
    }
    PyObject *module = PyImport_ImportModule("hpccoll.arrays._half");
    PyObject *type = module != NULL ? PyObject_GetAttrString(module, "Kernel") : NULL;
    int fits = type != NULL ? PyObject_IsInstance(kernel, type) : -1;
    Py_XDECREF(module);
    Py_XDECREF(type);
    if (fits <= 0) {
        if (!fits)
            PyErr_SetString(PyExc_TypeError, "this is no kernel");
        return -1;
    }
    self->kernel.half = (const HalfKernel *)kernel;
    self->kernel.itemsize = 2;
    return 0;
}

/* Read the ring of moments: a row with their number, then a power of two of rows. */
static int read_moments(CompiledPlan *self, PyObject *object)
{
    Py_buffer memory;
    if (PyObject_GetBuffer(object, &memory, PyBUF_WRITABLE) < 0)
        return -1;
    int64_t row = MOMENT * (int64_t)sizeof(int64_t), kept = memory.len / row - 1;
    self->moments = memory.buf;
    self->moments_kept = kept;
    PyBuffer_Release(&memory);  /* an array's memory does not move while the array lives */
    if (kept > 0 && !(kept & (kept - 1)) && (kept + 1) * row == memory.len)
        return 0;
    PyErr_SetString(PyExc_ValueError, "moments are noted in a power of two of rows");
    return -1;
}

/* Compute the contents of the words of its messages, in addition to their numbers. */
void mark_messages(CompiledPlan *plan)
{
    for (int64_t *step = plan->code; step[0] != END; step += WIDTH)
        if (step[0] == SEND || step[0] == TAKE)
            step[5] = step[4] ^ (plan->call_hash.value & LARGEST);
}

/* Return a copy, which keeps its operands while those of the original change. */
CompiledPlan *copy_plan(const CompiledPlan *plan)
{
    size_t code_bytes = plan->length * WIDTH * sizeof(int64_t);
    size_t channel_bytes = (plan->channel_count + 1) * sizeof(Channel);
    size_t count_bytes = plan->counts != NULL ? (1 + plan->counts[0]) * sizeof(int64_t) : 0;
    CompiledPlan *copy = (CompiledPlan *)CompiledPlanType.tp_alloc(&CompiledPlanType, 0);
    if (copy == NULL)
        return NULL;
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
    if (count_bytes)
        memcpy(copy->counts, plan->counts, count_bytes);
    return copy;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "sizes", "channels", "kernel", "scratch", "owners", "waiter",
                            "yields", "call_hash", "log", "alarm", "accumulator", "moments", NULL};
    Py_buffer code, scratch;
    long long in, out, call_hash = 0, log = 0, alarm = 0;
    PyObject *channels, *kernel, *memory, *owners, *waiter;
    PyObject *accumulator = Py_None, *moments = Py_None;
    int yields;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*(LL)O!OOOOp|LLLOO", names, &code, &in, &out,
                                     &PyTuple_Type, &channels, &kernel, &memory, &owners, &waiter,
                                     &yields, &call_hash, &log, &alarm, &accumulator, &moments))
        return NULL;
    CompiledPlan *self = (CompiledPlan *)type->tp_alloc(type, 0);
    if (self == NULL || PyObject_GetBuffer(memory, &scratch, PyBUF_WRITABLE) < 0)
        goto failed;
    self->scratch = scratch.buf;
    int64_t sizes[CELL] = {in, out, scratch.len};
    memcpy(self->sizes, sizes, sizeof sizes);
    PyBuffer_Release(&scratch);  /* an array's memory does not move while the array lives */
    if (accumulator != Py_None) {
        if (PyObject_GetBuffer(accumulator, &scratch, PyBUF_WRITABLE) < 0)
            goto failed;
        self->accumulator = scratch.buf;
        self->accumulator_bytes = scratch.len;
        PyBuffer_Release(&scratch);
    }
    if (moments != Py_None && read_moments(self, moments) < 0)
        goto failed;
    self->memory = Py_NewRef(memory);
    self->owners = PyTuple_Pack(5, owners, channels, kernel, accumulator, moments);
    self->waiter = Py_NewRef(waiter);
    self->spins = yields ? 0 : SPINS;
    self->call_hash.value = call_hash;
    self->log = (Word *)(intptr_t)log;
    self->alarm = (Word *)(intptr_t)alarm;
    self->length = code.len / (WIDTH * (Py_ssize_t)sizeof(int64_t));
    self->code = PyMem_Malloc(code.len + 1);
    if (self->owners == NULL || self->code == NULL || read_channels(self, channels) < 0
        || read_kernel(self, kernel) < 0)
        goto failed;
    memcpy(self->code, code.buf, code.len);
    const char *problem = code.len % (WIDTH * sizeof(int64_t)) 
        ? "half an instruction" : check_plan(self);
    if (problem != NULL) {
        PyErr_Format(PyExc_ValueError, "the compiled plan has %s", problem);
        goto failed;
    }
    mark_messages(self);
    PyBuffer_Release(&code);
    return (PyObject *)self;
failed:
    PyBuffer_Release(&code);
    if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(self);
    return NULL;
}

/* Create a run with its own state; ``buffers`` must stay alive until its end. */
Run *new_run(CompiledPlan *plan, char *in, char *out, PyObject *buffers)
{
    Run *self = PyObject_New(Run, &RunType);
    if (self == NULL)
        return NULL;
    memset(&self->state, 0, sizeof self->state);
    self->plan = (CompiledPlan *)Py_NewRef(plan);
    self->buffers = Py_XNewRef(buffers);
    self->state.base[IN] = in;
    self->state.base[OUT] = out;
    self->state.base[SCRATCH] = plan->scratch;
    self->state.unsent = PyMem_Malloc((plan->sends + 1) * sizeof(Unsent));
    if (self->state.unsent == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

/* Messages of a plan that need no allocation: algorithms that send to every rank have many. */
#define FEW 64

/* Record a call in this rank's log; return 1 if no rank has failed. */
static inline int opened(const CompiledPlan *plan)
{
    Word *log = plan->log;
    int64_t number = INT64_MAX;
    if (log != NULL) {
        number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
        note_start(log, number, plan->call_hash);
        atomic_store_explicit(&log[NUMBER], number, memory_order_release);
    }
    if (plan->alarm == NULL)
        return 1;
    int64_t alarm = atomic_load_explicit(plan->alarm, memory_order_acquire);
    return !alarm || number < alarm - 1;
}

/* Advance a run; a long one releases the GIL, as the MPI library's calls do: it copies and reduces
 * for longer than other threads of Python should wait. */
int advance_detached(CompiledPlan *plan, State *state, int64_t timeout_us)
{
    if (plan->sizes[IN] + plan->sizes[OUT] < LONG_CALL)
        return advance(plan, state, timeout_us);
    int found;
    Py_BEGIN_ALLOW_THREADS
    state->detached = 1;
    found = advance(plan, state, timeout_us);
    state->detached = 0;
    Py_END_ALLOW_THREADS
    return found;
}

static PyObject *library_progress;

static PyObject *set_library_progress(PyObject *module, PyObject *function)
{
    (void)module;
    Py_XSETREF(library_progress, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* Let the MPI library progress its own messages at the end of a barrier, as its barrier does: after
 * one, programs probe for messages that were sent before it. */
static int progress_library(void)
{
    PyObject *done = library_progress != NULL ? PyObject_CallNoArgs(library_progress)
                                              : Py_NewRef(Py_None);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Run a compiled plan to its end; long waits continue in Python, which may raise an error. */
int play(CompiledPlan *plan, char *in, char *out, PyObject *buffers)
{
    Unsent few[FEW], *unsent = few;
    if (plan->sends > FEW && (unsent = PyMem_Malloc(plan->sends * sizeof(Unsent))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    State state = {{in, out, plan->scratch, NULL}, 0, 0, unsent, 0};
    Run *under_way = NULL;
    int found = WAITING, here = opened(plan);
    Py_INCREF(plan);
    if (here)
        found = advance_detached(plan, &state, others_under_way() ? SLICE : PATIENCE);
    if (found != DONE) {
        under_way = new_run(plan, in, out, buffers);
        if (under_way != NULL) {
            if (here) {
                Unsent *own = under_way->state.unsent;
                memcpy(own, unsent, state.unsent_count * sizeof(Unsent));
                under_way->state = state;
                under_way->state.unsent = own;
            }
            PyObject *over = PyObject_CallOneArg(plan->waiter, (PyObject *)under_way);
            found = over == NULL ? -1 : DONE;
            Py_XDECREF(over);
            Py_DECREF(under_way);
        } else
            found = -1;
    }
    if (unsent != few)
        PyMem_Free(unsent);
    if (found == DONE && plan->log != NULL)  /* only this rank writes its number */
        note_end(plan->log, atomic_load_explicit(&plan->log[NUMBER], memory_order_relaxed));
    int is_barrier = !plan->sizes[IN] && !plan->sizes[OUT];
    Py_DECREF(plan);
    if (found != DONE)
        return -1;
    return is_barrier ? progress_library() : 0;
}

static PyObject *plan_run(CompiledPlan *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers = NULL;
    if (!PyArg_ParseTuple(args, "LL|O", &in, &out, &buffers)
        || play(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *plan_begin(CompiledPlan *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers = NULL;
    if (!PyArg_ParseTuple(args, "LL|O", &in, &out, &buffers))
        return NULL;
    return (PyObject *)new_run(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers);
}

static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run, METH_VARARGS,
     "Run to the end, on input and output at addresses; a third argument keeps them alive."},
    {"begin", (PyCFunction)plan_begin, METH_VARARGS,
     "Return a run on input and output at addresses, which ``advance`` progresses."},
    {NULL}};

static PyMemberDef plan_members[] = {
    {"owners", T_OBJECT, offsetof(CompiledPlan, owners), READONLY, "objects that the plan keeps alive"},
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

/* ---- Run ------------------------------------------------------------------------------------- */

static void run_dealloc(Run *self)
{
    PyMem_Free(self->state.unsent);
    Py_XDECREF(self->plan);
    Py_XDECREF(self->buffers);
    PyObject_Free(self);
}

static PyObject *run_advance(Run *self, PyObject *args)
{
    long long timeout_us = PATIENCE;
    if (!PyArg_ParseTuple(args, "|L", &timeout_us))
        return NULL;
    return PyLong_FromLong(advance_detached(self->plan, &self->state, timeout_us));
}

static PyObject *run_restart(Run *self, PyObject *Py_UNUSED(none))
{
    self->state.at = self->state.unsent_count = 0;
    Py_RETURN_NONE;
}

/* Skip an instruction that Python has executed. */
static PyObject *run_skip(Run *self, PyObject *Py_UNUSED(none))
{
    const int64_t *code = self->plan->code;
    int64_t operation = code[self->state.at * WIDTH];
    if (operation == START || operation == AWAIT) {
        self->state.at++;
        Py_RETURN_NONE;
    }
    if (operation != TAKE) {
        PyErr_SetString(PyExc_ValueError, "no message is pending");
        return NULL;
    }
    while (code[self->state.at * WIDTH] != TAKEN)
        self->state.at++;
    self->plan->channels[code[self->state.at * WIDTH + 2]].counters->received++;
    self->state.at++;
    Py_RETURN_NONE;
}

static PyMethodDef run_methods[] = {
    {"advance", (PyCFunction)run_advance, METH_VARARGS,
     "Progress for some microseconds after a message was missing; return the state."},
    {"restart", (PyCFunction)run_restart, METH_NOARGS, "Restart from the beginning."},
    {"skip", (PyCFunction)run_skip, METH_NOARGS,
     "Continue after the awaited message, or after the batch that is started or awaited."},
    {NULL}};

/* Return the counts of a call whose form has compiled plans for any size. */
static PyObject *run_counts(Run *self, void *Py_UNUSED(none))
{
    const int64_t *counts = self->plan->counts;
    PyObject *found = PyTuple_New(counts != NULL ? counts[0] : 0);
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(found); i++) {
        PyObject *count = PyLong_FromLongLong(counts[1 + i]);
        if (count == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, count);
    }
    return found;
}

static PyObject *run_sizes(Run *self, void *Py_UNUSED(none))
{
    return Py_BuildValue("(LL)", (long long)self->plan->sizes[IN],
                         (long long)self->plan->sizes[OUT]);
}

static PyGetSetDef run_attributes[] = {
    {"counts", (getter)run_counts, NULL, "counts of a call of any size, from which its plan follows",
     NULL},
    {"sizes", (getter)run_sizes, NULL, "bytes of input and output", NULL}, {NULL}};

static PyMemberDef run_members[] = {
    {"at", T_PYSSIZET, offsetof(Run, state.at), READONLY, "number of the next instruction"},
    {"input", T_LONGLONG, offsetof(Run, state.base[IN]), READONLY, "address of the input"},
    {"output", T_LONGLONG, offsetof(Run, state.base[OUT]), READONLY, "address of the output"},
    {NULL}};

PyTypeObject RunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Run",
    .tp_doc = "A running compiled plan.",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = run_methods,
    .tp_members = run_members,
    .tp_getset = run_attributes,
    .tp_dealloc = (destructor)run_dealloc,
};

/* ---- the module ------------------------------------------------------------------------------ */

static PyObject *has_loop(PyObject *module, PyObject *args)
{
    PyObject *ufunc, *dtype;
    Kernel kernel;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &ufunc, &dtype))
        return NULL;
    return PyBool_FromLong(find_loop(ufunc, dtype, &kernel));
}

static PyMethodDef functions[] = {
    {"opening", note_opening, METH_VARARGS, "Return a callback that records the start of a call."},
    {"closing", note_closing, METH_VARARGS, "Return a callback that records the end of the last call."},
    {"moment", note_moments, METH_VARARGS, "Return a callback that records a moment in a ring."},
    {"amid", note_amid, METH_VARARGS, "Return a callback that calls a function between two moments."},
    {"hash_of_amount", hash_of_amount, METH_VARARGS,
     "Return the call_hash of a call from that of its form and its amount of data."},
    {"has_loop", has_loop, METH_VARARGS,
     "Return whether a ufunc has a loop for two operands and a result of a type."},
    {"set_in_place", set_in_place, METH_O, "Set the object that means in place."},
    {"set_library_progress", set_library_progress, METH_O,
     "Set the function that lets the MPI library progress its own messages."},
    {"set_refusal", set_refusal, METH_O, "Set the function that raises the error of concurrent calls."},
    {"set_progress", set_progress, METH_VARARGS,
     "Set the progress function, the class of tokens, and the offset of a request's handle."},
    {"stop_background", stop_background, METH_NOARGS, "Stop the thread that progresses plans."},
    {"set_operators", set_operators, METH_VARARGS, "Set the operators sum, product, maximum and minimum."},
    {"check_at_exit", check_at_exit, METH_VARARGS,
     "Check, while MPI_Finalize runs at the exit, that no process has been killed."},
    {"shortcut", shortcut, METH_VARARGS,
     "Return a method in C with a fallback in Python."},
    {NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_executor", .m_doc = "The compiled executor.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__executor(void)
{
    import_array();
    import_umath();
    if (!atomic_is_lock_free((Word *)&counters_members)) {
        PyErr_SetString(PyExc_ImportError, "64-bit atomics are not lock-free");
        return NULL;
    }
    PyObject *self = PyModule_Create(&module);
    static struct { const char *name; PyTypeObject *type; } types[] = {
        {"Counters", &CountersType}, {"CompiledPlan", &CompiledPlanType}, {"Run", &RunType},
        {"Calls", &CallsType},
        {"Recognised", &RecognisedType}, {"AnySize", &AnySizeType}, {"Token", &TokenType}, {"RequestQueue", &RequestQueueType},
        {"CompiledRun", &CompiledRunType}, {"Begin", &BeginType},
        {"Numbers", &NumbersType}, {"Noted", &NotedType}, {"CallGuard", &CallGuardType},
        {"Note", &NoteType}, {"CallRows", &CallRowsType}, {"Seen", &SeenType},
        {"WatchedMethod", &WatchedMethodType}};
    static struct { const char *name; long value; } numbers[] = {
        {"PLACES", PLACES}, {"SMALL", SMALL}, {"SIZE_BITS", SIZE_BITS}, {"WIDTH", WIDTH},
        {"OFFSET_BITS", OFFSET_BITS}, {"NUMBER", NUMBER}, {"INSIDE", INSIDE}, {"CHECK", CHECK}, {"ALARM", ALARM},
        {"HASHES", HASHES}, {"STARTS", STARTS}, {"ENDS", ENDS}, {"FORMS", FORMS}, {"AMOUNTS", AMOUNTS},
        {"REMEMBERED", REMEMBERED}, {"DONE", DONE}, {"WAITING", WAITING},
        {"ELSEWHERE", ELSEWHERE}, {"REMOTE", REMOTE}, {"OPERATIONS", OPERATIONS}, {"BASES", BASES}};
    if (self == NULL || prepare_arguments() < 0 || prepare_recognition() < 0 || prepare_requests() < 0
        || prepare_numbers() < 0 || prepare_watching() < 0)
        return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyType_Ready(types[i].type) < 0
            || PyModule_AddObjectRef(self, types[i].name, (PyObject *)types[i].type) < 0)
            return NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(self, numbers[i].name, numbers[i].value) < 0)
            return NULL;
    return self;
}
