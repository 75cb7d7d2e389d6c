/* Requests of compiled plans: a Run that one call starts and another one completes; see _executor.c.
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
#include "_requests.h"

/* Largest number of cached operations for calls of one kind. */
enum { MOST_KEPT = 64 };
/* Minimum bytes of copies and reductions of a compiled plan that runs without the GIL. */
#define MUCH (384 << 10)
/* Polls for a message between two yields, if every rank has its own core. */
#define LOOKS 50
/* Microseconds to wait for other threads to release a completed operation, before a restart. */
#define STARTED 1000000

static PyObject *progress, *operations, *make_token, *tokens;
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
    } else {
        uint64_t word = handle;
        memcpy(place, &word, sizeof word);
    }
}

/* ---- Token ----------------------------------------------------------------------------------- */

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
    Py_ssize_t last = PyList_GET_SIZE(tokens) - 1;
    PyObject *token;
    if (last >= 0) {
        token = Py_NewRef(PyList_GET_ITEM(tokens, last));
        if (PyList_SetSlice(tokens, last, last + 1, NULL) < 0)
            Py_CLEAR(token);
    } else
        token = PyObject_CallNoArgs(make_token);
    if (token != NULL && !PyObject_TypeCheck(token, &TokenType)) {
        PyErr_SetString(PyExc_TypeError, "not a token");
        Py_CLEAR(token);
    }
    if (token != NULL)
        Py_XSETREF(((Token *)token)->owner, Py_NewRef(owner));
    return (Token *)token;
}

/* ---- RequestQueue, CompiledRun ----------------------------------------------------------------------- */

PyTypeObject RequestQueueType, CompiledRunType, BeginType;

static int take_out(PyObject *list, PyObject *object)
{
    for (Py_ssize_t i = PyList_GET_SIZE(list) - 1; i >= 0; i--)
        if (PyList_GET_ITEM(list, i) == object)
            return PyList_SetSlice(list, i, i + 1, NULL) < 0 ? -1 : 1;
    return 0;
}

static int64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Wait some time for another thread to release an operation; return 1 if it did. */
static int given_back(CompiledRun *operation, int64_t timeout_us)
{
    int64_t end = microseconds() + timeout_us;
    int free;
    Py_BEGIN_ALLOW_THREADS
    while (!(free = atomic_load_explicit(&operation->busy, memory_order_acquire) == FREE)
           && microseconds() < end)
        sched_yield();
    Py_END_ALLOW_THREADS
    return free;
}

/* Run an operation that is first in its queue, as far as possible. */
static int step(CompiledRun *self, int64_t timeout_us)
{
    int found = DONE;
    Py_INCREF(self);
    while (!has_ended(self) && !self->over) {  /* over: it was removed meanwhile */
        if (!claim(self, RUNNING)) {
            found = WAITING;
            if (timeout_us && given_back(self, timeout_us))
                continue;
            break;
        }
        if (!self->is_long) {
            found = advance(self->run->plan, &self->run->state, timeout_us);
            if (found == DONE)
                atomic_store_explicit(&self->ended, 1, memory_order_release);
            release(self);
            break;
        }
        Py_BEGIN_ALLOW_THREADS
        self->run->state.detached = 1;
        found = advance(self->run->plan, &self->run->state, timeout_us);
        self->run->state.detached = 0;
        if (found == DONE)
            atomic_store_explicit(&self->ended, 1, memory_order_release);
        release(self);
        Py_END_ALLOW_THREADS
        break;
    }
    if (has_ended(self))
        found = DONE;
    Py_DECREF(self);
    return found;
}

/* Start operations that have become the first of a queue. */
static void next_turn(RequestQueue *queue)
{
    Turn next;
    do {
        next = whose_turn(queue);
    } while (next.compiled != NULL && !hands_over(next.compiled) && step(next.compiled, 0) == DONE);
}

/* Progress an operation, and those before it in its queue. */
static int go_on(CompiledRun *self, int64_t timeout_us)
{
    while (!has_ended(self) && self->queue != NULL) {
        Turn first = whose_turn(self->queue);
        if (first.operation == NULL || first.compiled == self)
            break;
        if (first.compiled == NULL)
            return WAITING;
        int found = step(first.compiled, timeout_us);
        if (found != DONE)
            return found == ELSEWHERE ? WAITING : found;
    }
    int found = step(self, timeout_us);
    if (found == DONE && self->queue != NULL)
        next_turn(self->queue);
    return found;
}

/* Start an operation and set the handle of its request to that of a token. */
static int begin(CompiledRun *self, PyObject *request)
{
    if (self->token == NULL && atomic_load_explicit(&self->busy, memory_order_acquire) != FREE)
        given_back(self, STARTED);
    if (self->token != NULL || atomic_load_explicit(&self->busy, memory_order_acquire) != FREE) {
        PyErr_SetString(PyExc_RuntimeError, "the operation is pending");
        return -1;
    }
    Word *alarm = self->run->plan->alarm;
    if (alarm != NULL && atomic_load_explicit(alarm, memory_order_acquire)) {
        PyObject *result = PyObject_CallMethodNoArgs((PyObject *)self, on_alarm_name);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    self->token = take_token((PyObject *)self);
    if (self->token == NULL)
        return -1;
    Py_CLEAR(self->slow_path);
    self->run->state.at = self->run->state.unsent_count = 0;
    self->idle = self->over = 0;
    atomic_store_explicit(&self->ended, 0, memory_order_release);
    if (PyList_Append(operations, (PyObject *)self) < 0 || put_under_way(self) < 0)
        return -1;
    set_handle(request, self->token->handle);
    if (!hands_over(self) && go_on(self, 0) < 0)
        return -1;
    if (self->threaded) {
        PyObject *lazy = PyObject_GetAttr(progress, lazy_name);
        PyObject *woken = lazy == Py_True ? PyObject_CallMethodNoArgs(progress, wake_name)
                                          : Py_XNewRef(lazy);
        Py_XDECREF(lazy);
        if (woken == NULL)
            return -1;
        Py_DECREF(woken);
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
    int failed = take_out(operations, (PyObject *)self) < 0;
    take_back(self);
    if (token != NULL) {
        failed |= PyList_Append(tokens, (PyObject *)token) < 0;
        Py_CLEAR(token->owner);
        Py_DECREF(token);
    }
    if (self->begin == NULL) {
        self->idle = 1;
        return failed ? -1 : 0;
    }
    Begin *begin = self->begin;
    self->begin = NULL;
    Py_CLEAR(self->run->buffers);
    failed |= PyObject_SetAttr(request, operation_name, Py_None) < 0;
    if (PyList_GET_SIZE(begin->free) < MOST_KEPT)
        failed |= PyList_Append(begin->free, (PyObject *)self) < 0;
    Py_DECREF(begin);
    return failed ? -1 : 0;
}

static void queue_dealloc(RequestQueue *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_DECREF(self->entries[i].operation);
    PyMem_RawFree(self->entries);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *queue_enter(RequestQueue *self, PyObject *operation)
{
    if (enter_queue(self, operation) < 0)
        return NULL;
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
    PyObject *first = whose_turn(self).operation;
    return Py_NewRef(first == NULL ? Py_None : first);
}

static PyMethodDef queue_methods[] = {
    {"enter", (PyCFunction)queue_enter, METH_O, "Put an operation behind the others."},
    {"leave", (PyCFunction)queue_leave, METH_O, "Take one out; the next one begins."},
    {"stop", (PyCFunction)queue_stop, METH_NOARGS, "One has failed: no operation runs any more."},
    {NULL}};

static PyGetSetDef queue_attributes[] = {
    {"first", (getter)queue_first, NULL, "whose turn it is, if anybody's", NULL}, {NULL}};

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
    for (const int64_t *at = plan->code; at < plan->code + WIDTH * plan->length; at += WIDTH)
        nbytes += at[0] == REDUCE ? at[6] * plan->kernel.itemsize
                  : at[0] == COPY || at[0] == SEND ? at[4] : 0;
    return nbytes >= MUCH;
}

static PyObject *compiled_prepare(CompiledRun *self, PyObject *args)
{
    PyObject *run, *queue;
    int threaded;
    if (!PyArg_ParseTuple(args, "O!Op", &RunType, &run, &queue, &threaded))
        return NULL;
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
    if (self->run == NULL || begin(self, request) < 0)
        return self->run == NULL ? PyErr_Format(PyExc_ValueError, "no call was prepared") : NULL;
    Py_RETURN_NONE;
}

static PyObject *compiled_attempt(CompiledRun *self, PyObject *timeout_us)
{
    long microseconds = PyLong_AsLong(timeout_us);
    if (microseconds == -1 && PyErr_Occurred())
        return NULL;
    int found = go_on(self, microseconds);
    return found < 0 ? NULL : PyLong_FromLong(found);
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
    if (fails < 0)
        return NULL;
    if (self->over || self->token == NULL || !(has_ended(self) || fails))
        Py_RETURN_NONE;
    PyObject *token = (PyObject *)self->token;
    self->token = NULL;
    self->over = 1;
    self->idle = 0;
    int lost = take_out(operations, (PyObject *)self) < 0;
    if (fails && self->queue != NULL)
        break_queue(self->queue);
    take_back(self);
    release(self);  /* Python may have claimed it and failed */
    if (!fails && self->begin != NULL)
        Py_CLEAR(self->run->buffers);
    if (self->queue != NULL)
        next_turn(self->queue);
    if (lost)
        Py_CLEAR(token);
    return token;
}

static PyMethodDef compiled_methods[] = {
    {"prepare", (PyCFunction)compiled_prepare, METH_VARARGS,
     "Set the run, its queue if it has one, and whether the thread may progress it."},
    {"begin", (PyCFunction)compiled_begin, METH_O, "Begin, for a request."},
    {"attempt", (PyCFunction)compiled_attempt, METH_O,
     "Progress for at most some microseconds; return DONE, WAITING or ELSEWHERE."},
    {"claim", (PyCFunction)compiled_claim, METH_NOARGS,
     "Reserve it; return whether it was free."},
    {"give_back", (PyCFunction)compiled_give_back, METH_NOARGS, "Make it free again."},
    {"conclude", (PyCFunction)compiled_conclude, METH_O,
     "Release it if it has ended, or failed if so requested; return its token, or None."},
    {NULL}};

static PyMemberDef compiled_members[] = {
    {"run", T_OBJECT, offsetof(CompiledRun, run), READONLY, "what runs"},
    {"queue", T_OBJECT, offsetof(CompiledRun, queue), READONLY, "where it waits for its turn"},
    {"token", T_OBJECT, offsetof(CompiledRun, token), 0, "what MPI knows of it"},
    {"slow_path", T_OBJECT, offsetof(CompiledRun, slow_path), 0, "what looks after this run"},
    {"idle", T_BOOL, offsetof(CompiledRun, idle), 0, "surely not under way, and nothing is wrong"},
    {"over", T_BOOL, offsetof(CompiledRun, over), 0, "it is not under way"},
    {"ended", T_BOOL, offsetof(CompiledRun, ended), READONLY, "its compiled plan is at the end"},
    {"busy", T_BOOL, offsetof(CompiledRun, busy), READONLY, "a thread runs it"},
    {"threaded", T_BOOL, offsetof(CompiledRun, threaded), 0, "the thread may drive it"},
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
    Py_ssize_t last = PyList_GET_SIZE(self->free) - 1;
    PyObject *found, *request, *none = PyTuple_New(0);
    if (none == NULL)
        return NULL;
    if (last >= 0) {
        found = Py_NewRef(PyList_GET_ITEM(self->free, last));
        if (PyList_SetSlice(self->free, last, last + 1, NULL) < 0)
            Py_CLEAR(found);
    } else
        found = PyObject_CallOneArg(self->make, self->plan);
    if (found != NULL
        && (!PyObject_TypeCheck(found, &CompiledRunType) || ((CompiledRun *)found)->run == NULL)) {
        PyErr_SetString(PyExc_TypeError, "not an operation of a compiled plan");
        Py_CLEAR(found);
    }
    request = found == NULL ? NULL : self->request->tp_new(self->request, none, NULL);
    Py_DECREF(none);
    CompiledRun *operation = (CompiledRun *)found;
    if (request != NULL) {
        State *state = &operation->run->state;
        state->base[IN] = in;
        state->base[OUT] = out;
        Py_XSETREF(operation->run->buffers, Py_XNewRef(buffers));
        Py_XSETREF(operation->begin, (Begin *)Py_NewRef(self));
        if (PyObject_SetAttr(request, operation_name, found) < 0 || begin(operation, request) < 0)
            Py_CLEAR(request);
    }
    Py_XDECREF(found);
    return request;
}

static PyObject *begin_begin(PyObject *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers;
    if (!PyArg_ParseTuple(args, "LLO", &in, &out, &buffers))
        return NULL;
    return begin_call(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers);
}

static PyObject *begin_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *plan, *make, *request;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OO!", &CompiledPlanType, &plan, &make, &PyType_Type, &request))
        return NULL;
    Begin *self = (Begin *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->plan = Py_NewRef(plan);
    self->make = Py_NewRef(make);
    self->request = (PyTypeObject *)Py_NewRef(request);
    self->free = PyList_New(0);
    if (self->free == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void begin_dealloc(Begin *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->free);
    Py_CLEAR(self->make);
    Py_CLEAR(self->plan);
    Py_CLEAR(self->request);
    Py_TYPE(self)->tp_free(self);
}

static int begin_traverse(Begin *self, visitproc visit, void *arg)
{
    Py_VISIT(self->free);
    Py_VISIT(self->make);
    Py_VISIT(self->plan);
    Py_VISIT(self->request);
    return 0;
}

static int begin_clear(Begin *self)
{
    if (self->free != NULL)
        return PyList_SetSlice(self->free, 0, PyList_GET_SIZE(self->free), NULL);
    return 0;
}

static PyMethodDef begin_methods[] = {
    {"begin", begin_begin, METH_VARARGS,
     "Return a request: a run on input and output at addresses; the last argument keeps them alive."},
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
    if (found == NULL)
        PyErr_Clear();
    else if (!PyObject_TypeCheck(found, &CompiledRunType) || ((CompiledRun *)found)->run == NULL)
        Py_CLEAR(found);
    return (CompiledRun *)found;
}

static PyObject *slowly(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(self->slow, args, flags, names);
}

static PyObject *request_start(Recognised *self, PyObject *const *args, size_t flags,
                               PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    CompiledRun *operation = given == 1 && names == NULL ? operation_of(args, given) : NULL;
    if (operation == NULL || !operation->idle) {
        Py_XDECREF(operation);
        return slowly(self, args, flags, names);
    }
    int failed = begin(operation, args[0]);
    Py_DECREF(operation);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* Complete the operation of a request within some time; return 1, or 0 if Python must continue. */
static int end_here(CompiledRun *operation, PyObject *request, int64_t timeout_us)
{
    int ended = 0;
    resume(timeout_us > 0);
    for (int64_t waited = 0; !operation->over; waited += SLICE) {
        int others = PyList_GET_SIZE(operations) > 1;
        int found = go_on(operation, others && timeout_us ? SLICE : timeout_us);
        if (found == DONE && !operation->over)
            ended = leave(operation, request) < 0 ? -1 : 1;
        if (found != WAITING || !others || waited >= timeout_us)
            break;
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

static PyObject *request_end(Recognised *self, PyObject *const *args, size_t flags,
                             PyObject *names, int64_t timeout_us)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    CompiledRun *operation = NULL;
    if (names == NULL && (given == 1 || (given == 2 && args[1] == Py_None)))
        operation = operation_of(args, given);
    int ended = operation == NULL ? 0 : end_here(operation, args[0], timeout_us);
    Py_XDECREF(operation);
    if (ended < 0)
        return NULL;
    if (ended)
        Py_RETURN_TRUE;
    return slowly(self, args, flags, names);
}

static PyObject *request_wait(Recognised *self, PyObject *const *args, size_t flags,
                              PyObject *names)
{
    return request_end(self, args, flags, names, PATIENCE);
}

static PyObject *request_test(Recognised *self, PyObject *const *args, size_t flags,
                              PyObject *names)
{
    return request_end(self, args, flags, names, 0);
}

/* Create a method that calls the C function of its name first and falls back to Python. */
PyObject *shortcut(PyObject *module, PyObject *args)
{
    static const struct { const char *name; void *function; } known[] = {
        {"Start", request_start}, {"Wait", request_wait}, {"Test", request_test},
        {"allreduce", number_allreduce}};
    const char *name;
    PyObject *slow;
    (void)module;
    if (!PyArg_ParseTuple(args, "sO", &name, &slow))
        return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name))
            return new_method(slow, (vectorcallfunc)known[i].function);
    return PyErr_Format(PyExc_ValueError, "no shortcut for %s", name);
}

/* Set the progress engine, the factory of tokens, and the offset of handles in requests. */
PyObject *set_progress(PyObject *module, PyObject *args)
{
    PyObject *one, *make, *list;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOniK", &one, &make, &handle_offset, &handle_size, &null_handle))
        return NULL;
    list = PyObject_GetAttrString(one, "operations");
    if (list == NULL)
        return NULL;
    if (!PyList_CheckExact(list)) {
        Py_DECREF(list);
        return PyErr_Format(PyExc_TypeError, "operations are no list");
    }
    Py_XSETREF(progress, Py_NewRef(one));
    Py_XSETREF(make_token, Py_NewRef(make));
    Py_XSETREF(operations, list);
    return Py_NewRef(tokens);
}

int others_under_way(void)
{
    return operations != NULL && PyList_GET_SIZE(operations) > 0;
}

int prepare_requests(void)
{
    tokens = PyList_New(0);
    step_name = PyUnicode_InternFromString("step");
    lazy_name = PyUnicode_InternFromString("lazy");
    wake_name = PyUnicode_InternFromString("wake");
    on_alarm_name = PyUnicode_InternFromString("on_alarm");
    operation_name = PyUnicode_InternFromString("_operation");
    if (prepare_background() < 0)
        return -1;
    return tokens && step_name && lazy_name && wake_name && on_alarm_name && operation_name ? 0 : -1;
}
