/* Runs of compiled plans; see _module.c for an overview. */
#include "_pending.h"
#include "_run.h"

/* Bytes of input and output from which a plan runs without the GIL: copies of some 10 us. */
#define LONG_CALL (128 << 10)
/* Microseconds of its waits before Python handles them, unless other operations are pending. */
#define LONG_PATIENCE 20000
/* Sleeps between two looks of Python, and steps of the MPI library after each. */
#define NAPS 4
#define PROGRESS_STEPS 4

/* Create a run with its own state; ``buffers`` must stay alive until its end. */
Run *new_run(CompiledPlan *plan, char *in, char *out, PyObject *buffers)
{
    Run *self = PyObject_New(Run, &RunType);
    if (self == NULL) {
        return NULL;
    }
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
static inline int record_start(const CompiledPlan *plan)
{
    Word *log = plan->log;
    int64_t number = INT64_MAX;
    if (log != NULL) {
        number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
        note_start(log, number, plan->call_hash);
        atomic_store_explicit(&log[NUMBER], number, memory_order_release);
    }
    if (plan->alarm == NULL) {
        return 1;
    }
    int64_t alarm = atomic_load_explicit(plan->alarm, memory_order_acquire);
    return !alarm || number < alarm - 1;
}

/* Advance a run; a long one releases the GIL, as the MPI library's calls do: it copies and reduces
 * for longer than other threads of Python should wait. Beside a thread that computes in Python,
 * each return takes the interpreter's switch interval, 5 ms, so it waits longer before it returns.
 */
static int advance_detached(CompiledPlan *plan, State *state, int64_t timeout_us)
{
    if (plan->sizes[IN] + plan->sizes[OUT] < LONG_CALL) {
        return advance(plan, state, timeout_us);
    }
    int found;
    if (timeout_us && timeout_us < LONG_PATIENCE && !plan->remote && !others_pending(0)) {
        timeout_us = LONG_PATIENCE;
    }
    Py_BEGIN_ALLOW_THREADS
    state->detached = 1;
    found = advance(plan, state, timeout_us);
    state->detached = 0;
    Py_END_ALLOW_THREADS
    return found;
}

static PyObject *library_progress;

PyObject *set_library_progress(PyObject *module, PyObject *function)
{
    (void)module;
    Py_XSETREF(library_progress, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* Let the MPI library progress its own messages at the end of a barrier, as its barrier does: after
 * one, programs probe for messages that were sent before it. */
static int progress_library(void)
{
    PyObject *done =
        library_progress != NULL ? PyObject_CallNoArgs(library_progress) : Py_NewRef(Py_None);
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
    State state = {.base = {in, out, plan->scratch}, .unsent = unsent};
    Run *under_way = NULL;
    int found = WAITING, here = record_start(plan);
    Py_INCREF(plan);
    if (here) {
        found = advance_detached(plan, &state, others_pending(0) ? SLICE : PATIENCE);
    }
    if (found != DONE) {
        under_way = new_run(plan, in, out, buffers);
        if (under_way != NULL && here) {
            Unsent *own = under_way->state.unsent;
            memcpy(own, unsent, state.unsent_count * sizeof(Unsent));
            under_way->state = state;
            under_way->state.unsent = own;
        }
        else if (under_way == NULL) { /* other ranks wait for it: Python reports the error */
            PyErr_Clear();
        }
        PyObject *over = PyObject_CallOneArg(plan->waiter, under_way != NULL ? (PyObject *)under_way
                                                                             : PyExc_MemoryError);
        found = over == NULL ? -1 : DONE;
        Py_XDECREF(over);
        Py_XDECREF(under_way);
    }
    if (unsent != few) {
        PyMem_Free(unsent);
    }
    if (found == DONE && plan->log != NULL) { /* only this rank writes its number */
        note_end(plan->log, atomic_load_explicit(&plan->log[NUMBER], memory_order_relaxed));
    }
    int is_barrier = !plan->sizes[IN] && !plan->sizes[OUT];
    Py_DECREF(plan);
    if (found != DONE) {
        return -1;
    }
    return is_barrier ? progress_library() : 0;
}

/* ---- Run ------------------------------------------------------------------------------------- */

static void run_dealloc(Run *self)
{
    PyMem_Free(self->state.unsent);
    Py_XDECREF(self->plan);
    Py_XDECREF(self->buffers);
    PyObject_Free(self);
}

/* Return 1 if a wait without a time-out, which has slept `naps` times, may sleep again before
 * Python looks at the other ranks: each look takes as much time as many sleeps. Lets the MPI
 * library progress its messages; -1 on an error. */
int may_sleep_again(const CompiledPlan *plan, int naps, int own)
{
    if (plan->remote || others_pending(own) || naps >= NAPS) {
        return 0;
    }
    for (int i = 0; i < PROGRESS_STEPS; i++) {
        if (progress_library() < 0) {
            return -1;
        }
    }
    return 1;
}

static PyObject *run_advance(Run *self, PyObject *args)
{
    long long timeout_us = -1;
    if (!PyArg_ParseTuple(args, "|L", &timeout_us)) {
        return NULL;
    }
    int again = 0, found, naps = 0;
    do {
        found = advance_detached(self->plan, &self->state, timeout_us);
    } while (found == WAITING && timeout_us < 0
             && (again = may_sleep_again(self->plan, ++naps, 0)) > 0);
    return again < 0 ? NULL : PyLong_FromLong(found);
}

static PyObject *run_restart(Run *self, PyObject *Py_UNUSED(none))
{
    self->state.at = self->state.unsent_count = 0;
    self->state.awaited = NULL;
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
    while (code[self->state.at * WIDTH] != TAKEN) {
        self->state.at++;
    }
    self->plan->channels[code[self->state.at * WIDTH + 2]].counters->received++;
    self->state.at++;
    Py_RETURN_NONE;
}

static PyMethodDef run_methods[] = {
    {"advance", (PyCFunction)run_advance, METH_VARARGS,
     "Progress for some microseconds after a message was missing, or for one sleep; return the "
     "state."},
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
        if (count == NULL) {
            Py_CLEAR(found);
        }
        else {
            PyTuple_SET_ITEM(found, i, count);
        }
    }
    return found;
}

static PyObject *run_sizes(Run *self, void *Py_UNUSED(none))
{
    return Py_BuildValue("(LL)", (long long)self->plan->sizes[IN],
                         (long long)self->plan->sizes[OUT]);
}

static PyGetSetDef run_attributes[] = {
    {"counts", (getter)run_counts, NULL,
     "counts of a call of any size, from which its plan follows", NULL},
    {"sizes", (getter)run_sizes, NULL, "bytes of input and output", NULL},
    {NULL}};

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
