/* Requests of compiled plans: a Run that one call starts and another one completes; see _module.c.
 *
 *     Token         a generalized request of MPI, lent to one operation at a time
 *     RequestQueue  operations whose messages share channels: one runs, the others wait
 *     CompiledRun   the operation of a request, pending or ready to start
 *     Begin         calls of one kind: creates a request for each, and reuses operations
 *
 * A pending operation is on the list of runtime/progress/engine.py. A wait for it in this file
 * removes it at completion, without MPI; other waits complete its token. All of this needs the GIL,
 * except long plans, waits, and the thread of _background.c. A running operation is `busy`.
 */
#include "_background.h"
#include "_clock.h"
#include "_compiled_plan.h"
#include "_pending.h"
#include "_requests.h"
#include "_wait.h"

/* Largest number of cached operations for calls of one kind. */
enum { MOST_KEPT = 64 };
/* Minimum bytes of copies and reductions of a compiled plan that runs without the GIL. */
#define MUCH (384 << 10)
/* Microseconds to wait for other threads to release a completed operation, before a restart. */
#define STARTED 1000000

static PyObject *progress, *make_token;
static Token *spare_tokens; /* those that are not lent */
static PyObject *step_name, *lazy_name, *wake_name, *operation_name, *on_alarm_name;
/* Offset of the handle in a request, its size, and the handle of no request. */
static Py_ssize_t handle_offset;
static int handle_size;
static unsigned long long null_handle;

static inline void set_handle(PyObject *request, unsigned long long handle)
{
    char *place = (char *)request + handle_offset;
    if (handle_size == sizeof(uint32_t)) {
        uint32_t word = (uint32_t)handle;
        memcpy(place, &word, sizeof word);
    }
    else {
        uint64_t word = handle;
        memcpy(place, &word, sizeof word);
    }
}

/* ---- Token ----------------------------------------------------------------------------------- */

/* Generalized request that is lent to one operation at a time. */
struct Token {
    PyObject_HEAD
    unsigned long long handle;
    PyObject *owner;
    Token *next; /* of those that are not lent */
};

static void token_dealloc(Token *self)
{
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef token_members[] = {
    {"handle", T_ULONGLONG, offsetof(Token, handle), 0, "the handle of MPI"},
    {"owner", T_OBJECT, offsetof(Token, owner), 0, "the operation that it is lent to"},
    {NULL}};

PyTypeObject TokenType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Token",
    .tp_doc = "A generalized request, lent to operations.",
    .tp_basicsize = sizeof(Token),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_members = token_members,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)token_dealloc,
};

static Token *take_token(PyObject *owner)
{
    Token *token = spare_tokens;
    if (token != NULL) {
        spare_tokens = token->next;
    }
    else {
        PyObject *made = PyObject_CallNoArgs(make_token);
        if (made != NULL && !PyObject_TypeCheck(made, &TokenType)) {
            PyErr_SetString(PyExc_TypeError, "not a token");
            Py_CLEAR(made);
        }
        token = (Token *)made;
    }
    if (token != NULL) {
        Py_XSETREF(token->owner, Py_NewRef(owner));
    }
    return token;
}

/* Take a token back from its owner, and its reference. */
static void return_token(Token *token)
{
    token->next = spare_tokens;
    spare_tokens = token;
    Py_CLEAR(token->owner);
}

PyObject *spare_token(PyObject *module, PyObject *Py_UNUSED(none))
{
    (void)module;
    Token *token = spare_tokens;
    if (token == NULL) {
        Py_RETURN_NONE;
    }
    spare_tokens = token->next;
    return (PyObject *)token;
}

/* ---- RequestQueue, CompiledRun --------------------------------------------------------------- */

/* Calls of one kind, and operations for the next ones. */
struct Begin {
    PyObject_HEAD
    PyObject *make, *plan;
    PyTypeObject *request;
    CompiledRun *free[MOST_KEPT];
    int free_count;
};

/* Keep an operation for the next call. */
static void keep(Begin *begin, CompiledRun *operation)
{
    if (begin->free_count < MOST_KEPT) {
        begin->free[begin->free_count++] = (CompiledRun *)Py_NewRef(operation);
    }
}

/* Wait some time for another thread to release an operation; return 1 if it did. */
static int await_release(CompiledRun *operation, int64_t timeout_us)
{
    Wait wait = start_wait(0, timeout_us, 0, 1);
    int free;
    Py_BEGIN_ALLOW_THREADS
    while (!(free = atomic_load_explicit(&operation->busy, memory_order_acquire) == FREE)
           && pass_time(&wait, NULL)) {
    }
    Py_END_ALLOW_THREADS
    return free;
}

/* Run an operation that is first in its queue, as far as possible. */
static int step(CompiledRun *self, int64_t timeout_us)
{
    int found = DONE;
    Py_INCREF(self);
    while (!has_ended(self) && !self->over) { /* over: it was removed meanwhile */
        if (!claim(self, RUNNING)) {
            found = WAITING;
            if (timeout_us && await_release(self, timeout_us)) {
                continue;
            }
            break;
        }
        if (!self->is_long) {
            found = advance(self->run->plan, &self->run->state, timeout_us);
            if (found == DONE) {
                atomic_store_explicit(&self->ended, 1, memory_order_release);
            }
            release(self);
            break;
        }
        Py_BEGIN_ALLOW_THREADS
        self->run->state.detached = 1;
        found = advance(self->run->plan, &self->run->state, timeout_us);
        self->run->state.detached = 0;
        if (found == DONE) {
            atomic_store_explicit(&self->ended, 1, memory_order_release);
        }
        release(self);
        Py_END_ALLOW_THREADS
        break;
    }
    if (has_ended(self)) {
        found = DONE;
    }
    Py_DECREF(self);
    return found;
}

/* Start operations that have become the first of a queue. */
static void next_turn(RequestQueue *queue)
{
    Turn next;
    do {
        next = first_operation(queue);
    } while (next.compiled != NULL && !thread_begins(next.compiled)
             && step(next.compiled, 0) == DONE);
}

/* Progress an operation, and those before it in its queue. */
static int progress_queue(CompiledRun *self, int64_t timeout_us)
{
    while (!has_ended(self) && self->queue != NULL) {
        Turn first = first_operation(self->queue);
        if (first.operation == NULL || first.compiled == self) {
            break;
        }
        if (first.compiled == NULL) {
            return WAITING;
        }
        int found = step(first.compiled, timeout_us);
        if (found != DONE) {
            return found == ELSEWHERE ? WAITING : found;
        }
    }
    int found = step(self, timeout_us);
    if (found == DONE && self->queue != NULL) {
        next_turn(self->queue);
    }
    return found;
}

/* Wake the thread of Python if it sleeps. */
static int wake_thread(void)
{
    PyObject *lazy = PyObject_GetAttr(progress, lazy_name);
    PyObject *woken =
        lazy == Py_True ? PyObject_CallMethodNoArgs(progress, wake_name) : Py_XNewRef(lazy);
    Py_XDECREF(lazy);
    Py_XDECREF(woken);
    return woken == NULL ? -1 : 0;
}

/* Start an operation and set the handle of its request to that of a token. On an error no message
 * was sent, and the operation can start again: its messages and its place in the queue come last.
 * Until then it is `over`, which the thread of Python skips. */
static int begin(CompiledRun *self, PyObject *request)
{
    if (self->token == NULL && atomic_load_explicit(&self->busy, memory_order_acquire) != FREE) {
        await_release(self, STARTED);
    }
    if (self->token != NULL || atomic_load_explicit(&self->busy, memory_order_acquire) != FREE) {
        PyErr_SetString(PyExc_RuntimeError, "the operation is pending");
        return -1;
    }
    Word *alarm = self->run->plan->alarm;
    if (alarm != NULL && atomic_load_explicit(alarm, memory_order_acquire)) {
        PyObject *result = PyObject_CallMethodNoArgs((PyObject *)self, on_alarm_name);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    self->token = take_token((PyObject *)self);
    if (self->token == NULL) {
        return -1;
    }
    Py_CLEAR(self->slow_path);
    self->run->state.at = self->run->state.unsent_count = 0;
    self->run->state.awaited = NULL;
    atomic_store_explicit(&self->ended, 0, memory_order_release);
    int failed = PyList_Append(pending_operations, (PyObject *)self) < 0;
    if (failed || (self->threaded && wake_thread() < 0) || post_operation(self) < 0) {
        if (!failed) {
            remove_pending((PyObject *)self);
        }
        return_token(self->token);
        self->token = NULL;
        return -1;
    }
    self->idle = self->over = 0;
    set_handle(request, self->token->handle);
    if (!thread_begins(self)) {
        progress_queue(self, 0);
    }
    return 0;
}

/* Finish an operation that its own wait has completed, without MPI. */
static int leave(CompiledRun *self, PyObject *request)
{
    Token *token = self->token;
    self->token = NULL;
    self->over = 1;
    set_handle(request, null_handle);
    remove_pending((PyObject *)self);
    withdraw_operation(self);
    if (token != NULL) {
        return_token(token);
    }
    if (self->begin == NULL) {
        self->idle = 1;
        return 0;
    }
    Begin *begin = self->begin;
    self->begin = NULL;
    Py_CLEAR(self->run->buffers);
    int failed = PyObject_SetAttr(request, operation_name, Py_None);
    if (!failed) {
        keep(begin, self);
    }
    Py_DECREF(begin);
    return failed;
}

static void queue_dealloc(RequestQueue *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_DECREF(self->entries[i].operation);
    }
    PyMem_RawFree(self->entries);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *queue_enter(RequestQueue *self, PyObject *operation)
{
    if (enter_queue(self, operation) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *queue_leave(RequestQueue *self, PyObject *operation)
{
    leave_queue(self, operation);
    next_turn(self);
    Py_RETURN_NONE;
}

static PyObject *queue_stop(RequestQueue *self, PyObject *Py_UNUSED(none))
{
    break_queue(self);
    Py_RETURN_NONE;
}

static PyObject *queue_first(RequestQueue *self, void *Py_UNUSED(none))
{
    PyObject *first = first_operation(self).operation;
    return Py_NewRef(first == NULL ? Py_None : first);
}

static PyMethodDef queue_methods[] = {
    {"enter", (PyCFunction)queue_enter, METH_O, "Put an operation behind the others."},
    {"leave", (PyCFunction)queue_leave, METH_O, "Take one out; the next one begins."},
    {"stop", (PyCFunction)queue_stop, METH_NOARGS, "One has failed: no operation runs any more."},
    {NULL}};

static PyGetSetDef queue_attributes[] = {
    {"first", (getter)queue_first, NULL, "the operation that runs; None for none", NULL}, {NULL}};

static PyMemberDef queue_members[] = {
    {"stopped", T_BOOL, offsetof(RequestQueue, broken), READONLY, "one has failed"}, {NULL}};

PyTypeObject RequestQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.RequestQueue",
    .tp_doc = "Operations whose messages share channels, in the order of their calls.",
    .tp_basicsize = sizeof(RequestQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = queue_methods,
    .tp_getset = queue_attributes,
    .tp_members = queue_members,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)queue_dealloc,
};

static void compiled_dealloc(CompiledRun *self)
{
    Py_XDECREF(self->run);
    Py_XDECREF(self->queue);
    Py_XDECREF(self->begin);
    Py_XDECREF(self->token);
    Py_XDECREF(self->slow_path);
    Py_TYPE(self)->tp_free(self);
}

/* Return 1 if a compiled plan moves many bytes, so that other threads should run meanwhile. */
static int moves_much(const CompiledPlan *plan)
{
    int64_t nbytes = 0;
    for (const int64_t *at = plan->code; at < plan->code + WIDTH * plan->length; at += WIDTH) {
        nbytes += at[0] == REDUCE                  ? at[6] * plan->kernel.itemsize
                  : at[0] == COPY || at[0] == SEND ? at[4]
                                                   : 0;
    }
    return nbytes >= MUCH;
}

static PyObject *compiled_prepare(CompiledRun *self, PyObject *args)
{
    PyObject *run, *queue;
    int threaded;
    if (!PyArg_ParseTuple(args, "O!Op", &RunType, &run, &queue, &threaded)) {
        return NULL;
    }
    if ((queue != Py_None && !Py_IS_TYPE(queue, &RequestQueueType)) || self->run != NULL) {
        PyErr_SetString(PyExc_TypeError, "expected one queue or None");
        return NULL;
    }
    self->run = (Run *)Py_NewRef(run);
    self->queue = queue == Py_None ? NULL : (RequestQueue *)Py_NewRef(queue);
    self->threaded = (char)threaded;
    self->is_long = moves_much(self->run->plan);
    self->idle = self->over = 1;
    Py_RETURN_NONE;
}

static PyObject *compiled_begin(CompiledRun *self, PyObject *request)
{
    if (self->run == NULL || begin(self, request) < 0) {
        return self->run == NULL ? PyErr_Format(PyExc_ValueError, "no call was prepared") : NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *compiled_attempt(CompiledRun *self, PyObject *timeout_us)
{
    long microseconds = PyLong_AsLong(timeout_us);
    if (microseconds == -1 && PyErr_Occurred()) {
        return NULL;
    }
    int again = 0, found, naps = 0;
    do {
        found = progress_queue(self, microseconds);
    } while (found == WAITING && microseconds < 0 && self->run->state.awaited != NULL
             && (again = may_sleep_again(self->run->plan, ++naps, 1)) > 0);
    return found < 0 || again < 0 ? NULL : PyLong_FromLong(found);
}

static PyObject *compiled_claim(CompiledRun *self, PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(claim(self, CLAIMED));
}

static PyObject *compiled_give_back(CompiledRun *self, PyObject *Py_UNUSED(none))
{
    release(self);
    Py_RETURN_NONE;
}

/* Remove a completed or failed operation and complete its token. */
static PyObject *compiled_conclude(CompiledRun *self, PyObject *failed)
{
    int fails = PyObject_IsTrue(failed);
    if (fails < 0) {
        return NULL;
    }
    if (self->over || self->token == NULL || !(has_ended(self) || fails)) {
        Py_RETURN_NONE;
    }
    PyObject *token = (PyObject *)self->token;
    self->token = NULL;
    self->over = 1;
    self->idle = 0;
    remove_pending((PyObject *)self);
    if (fails && self->queue != NULL) {
        break_queue(self->queue);
    }
    withdraw_operation(self);
    release(self); /* Python may have claimed it and failed */
    if (!fails && self->begin != NULL) {
        Py_CLEAR(self->run->buffers);
    }
    if (self->queue != NULL) {
        next_turn(self->queue);
    }
    return token;
}

static PyMethodDef compiled_methods[] = {
    {"prepare", (PyCFunction)compiled_prepare, METH_VARARGS,
     "Set the run, its queue if it has one, and whether the thread may progress it."},
    {"begin", (PyCFunction)compiled_begin, METH_O, "Begin, for a request."},
    {"attempt", (PyCFunction)compiled_attempt, METH_O,
     "Progress for at most some microseconds; return DONE, WAITING or ELSEWHERE."},
    {"claim", (PyCFunction)compiled_claim, METH_NOARGS, "Reserve it; return whether it was free."},
    {"give_back", (PyCFunction)compiled_give_back, METH_NOARGS, "Make it free again."},
    {"conclude", (PyCFunction)compiled_conclude, METH_O,
     "Release it if it has ended, or failed if so requested; return its token, or None."},
    {NULL}};

static PyMemberDef compiled_members[] = {
    {"run", T_OBJECT, offsetof(CompiledRun, run), READONLY, "its run"},
    {"queue", T_OBJECT, offsetof(CompiledRun, queue), READONLY,
     "the queue of operations that share its channels"},
    {"token", T_OBJECT, offsetof(CompiledRun, token), 0,
     "its generalized request, while it is pending"},
    {"slow_path", T_OBJECT, offsetof(CompiledRun, slow_path), 0, "its slow path in Python"},
    {"idle", T_BOOL, offsetof(CompiledRun, idle), 0, "certainly inactive, without an error"},
    {"over", T_BOOL, offsetof(CompiledRun, over), 0, "it is not pending"},
    {"ended", T_BOOL, offsetof(CompiledRun, ended), READONLY, "its compiled plan is at the end"},
    {"busy", T_BOOL, offsetof(CompiledRun, busy), READONLY, "a thread runs it"},
    {"threaded", T_BOOL, offsetof(CompiledRun, threaded), 0, "the thread may progress it"},
    {NULL}};

PyTypeObject CompiledRunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.CompiledRun",
    .tp_doc = "A compiled plan that stands behind requests.",
    .tp_basicsize = sizeof(CompiledRun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_methods = compiled_methods,
    .tp_members = compiled_members,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)compiled_dealloc,
};

/* ---- Begin ----------------------------------------------------------------------------------- */

PyObject *begin_call(PyObject *target, char *in, char *out, PyObject *buffers)
{
    Begin *self = (Begin *)target;
    PyObject *none = PyTuple_New(0), *found;
    if (none == NULL) {
        return NULL;
    }
    if (self->free_count) {
        found = (PyObject *)self->free[--self->free_count];
    }
    else {
        found = PyObject_CallOneArg(self->make, self->plan);
    }
    if (found != NULL
        && (!PyObject_TypeCheck(found, &CompiledRunType) || ((CompiledRun *)found)->run == NULL)) {
        PyErr_SetString(PyExc_TypeError, "not an operation of a compiled plan");
        Py_CLEAR(found);
    }
    CompiledRun *operation = (CompiledRun *)found;
    PyObject *request = found == NULL ? NULL : self->request->tp_new(self->request, none, NULL);
    Py_DECREF(none);
    if (request != NULL) {
        State *state = &operation->run->state;
        state->base[IN] = in;
        state->base[OUT] = out;
        Py_XSETREF(operation->run->buffers, Py_XNewRef(buffers));
        Py_XSETREF(operation->begin, (Begin *)Py_NewRef(self));
        if (PyObject_SetAttr(request, operation_name, found) < 0 || begin(operation, request) < 0) {
            Py_CLEAR(request);
        }
    }
    if (request == NULL && operation != NULL && operation->token == NULL) {
        Py_CLEAR(operation->run->buffers);
        Py_CLEAR(operation->begin);
        keep(self, operation);
    }
    Py_XDECREF(found);
    return request;
}

static PyObject *begin_begin(PyObject *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers;
    if (!PyArg_ParseTuple(args, "LLO", &in, &out, &buffers)) {
        return NULL;
    }
    return begin_call(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers);
}

static PyObject *begin_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *plan, *make, *request;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OO!", &CompiledPlanType, &plan, &make, &PyType_Type, &request)) {
        return NULL;
    }
    Begin *self = (Begin *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->plan = Py_NewRef(plan);
    self->make = Py_NewRef(make);
    self->request = (PyTypeObject *)Py_NewRef(request);
    return (PyObject *)self;
}

static int begin_clear(Begin *self)
{
    while (self->free_count) {
        Py_DECREF(self->free[--self->free_count]);
    }
    return 0;
}

static void begin_dealloc(Begin *self)
{
    PyObject_GC_UnTrack(self);
    begin_clear(self);
    Py_CLEAR(self->make);
    Py_CLEAR(self->plan);
    Py_CLEAR(self->request);
    Py_TYPE(self)->tp_free(self);
}

static int begin_traverse(Begin *self, visitproc visit, void *arg)
{
    for (int i = 0; i < self->free_count; i++) {
        Py_VISIT(self->free[i]);
    }
    Py_VISIT(self->make);
    Py_VISIT(self->plan);
    Py_VISIT(self->request);
    return 0;
}

static PyMethodDef begin_methods[] = {{"begin", begin_begin, METH_VARARGS,
                                       "Return a request: a run on input and output at addresses; "
                                       "the last argument keeps them alive."},
                                      {NULL}};

PyTypeObject BeginType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Begin",
    .tp_doc = "Nonblocking calls of one kind.",
    .tp_basicsize = sizeof(Begin),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = begin_methods,
    .tp_new = begin_new,
    .tp_dealloc = (destructor)begin_dealloc,
    .tp_traverse = (traverseproc)begin_traverse,
    .tp_clear = (inquiry)begin_clear,
};

/* ---- methods of requests --------------------------------------------------------------------- */

/* Return the operation of a request, if it runs a compiled plan. */
static CompiledRun *operation_of(PyObject *const *args, Py_ssize_t given)
{
    PyObject *found = given ? PyObject_GetAttr(args[0], operation_name) : NULL;
    if (found == NULL) {
        PyErr_Clear();
    }
    else if (!PyObject_TypeCheck(found, &CompiledRunType) || ((CompiledRun *)found)->run == NULL) {
        Py_CLEAR(found);
    }
    return (CompiledRun *)found;
}

static PyObject *call_slow(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(self->slow, args, flags, names);
}

PyObject *request_start(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    CompiledRun *operation = given == 1 && names == NULL ? operation_of(args, given) : NULL;
    if (operation == NULL || !operation->idle) {
        Py_XDECREF(operation);
        return call_slow(self, args, flags, names);
    }
    int failed = begin(operation, args[0]);
    Py_DECREF(operation);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Complete the operation of a request within some time; return 1, or 0 if Python must continue. */
static int end_here(CompiledRun *operation, PyObject *request, int64_t timeout_us)
{
    int ended = 0;
    resume(timeout_us > 0);
    for (int64_t waited = 0; !operation->over; waited += SLICE) {
        int others = others_pending(1);
        int found = progress_queue(operation, others && timeout_us ? SLICE : timeout_us);
        if (found == DONE && !operation->over) {
            ended = leave(operation, request) < 0 ? -1 : 1;
        }
        if (found != WAITING || !others || waited >= timeout_us) {
            break;
        }
        PyObject *moved = PyObject_CallMethodNoArgs(progress, step_name);
        if (moved == NULL) {
            ended = -1;
            break;
        }
        Py_DECREF(moved);
    }
    resume(-(timeout_us > 0));
    return ended;
}

static PyObject *request_end(Recognised *self, PyObject *const *args, size_t flags, PyObject *names,
                             int64_t timeout_us)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    CompiledRun *operation = NULL;
    if (names == NULL && (given == 1 || (given == 2 && args[1] == Py_None))) {
        operation = operation_of(args, given);
    }
    int ended = operation == NULL ? 0 : end_here(operation, args[0], timeout_us);
    Py_XDECREF(operation);
    if (ended < 0) {
        return NULL;
    }
    if (ended) {
        Py_RETURN_TRUE;
    }
    return call_slow(self, args, flags, names);
}

PyObject *request_wait(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return request_end(self, args, flags, names, PATIENCE);
}

PyObject *request_test(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return request_end(self, args, flags, names, 0);
}

/* Set the progress engine, the factory of tokens, and the offset of handles in requests. */
PyObject *set_progress(PyObject *module, PyObject *args)
{
    PyObject *one, *make, *list;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOniK", &one, &make, &handle_offset, &handle_size, &null_handle)) {
        return NULL;
    }
    list = PyObject_GetAttrString(one, "operations");
    int failed = list == NULL || set_pending(list) < 0;
    Py_XDECREF(list);
    if (failed) {
        return NULL;
    }
    Py_XSETREF(progress, Py_NewRef(one));
    Py_XSETREF(make_token, Py_NewRef(make));
    Py_RETURN_NONE;
}

int prepare_requests(void)
{
    step_name = PyUnicode_InternFromString("step");
    lazy_name = PyUnicode_InternFromString("lazy");
    wake_name = PyUnicode_InternFromString("wake");
    on_alarm_name = PyUnicode_InternFromString("on_alarm");
    operation_name = PyUnicode_InternFromString("_operation");
    if (prepare_background() < 0) {
        return -1;
    }
    return step_name && lazy_name && wake_name && on_alarm_name && operation_name ? 0 : -1;
}
