/* The compiled executor: it runs tapes, and recognises calls that were served before.
 *
 * A tape is one rank's lowered program as a flat array of instructions (hpccoll/runtime/tape.py
 * makes and reads them). This file knows the instructions, and the words that announce messages in
 * the channels of shared memory (hpccoll/transport/shm/channels.py); nothing of MPI or of algorithms.
 *
 *     Counters     the numbers of a channel's last messages, shared with the Python executor
 *     Tape         instructions, checked once, here; runs on any arrays of the right sizes
 *     Run          a tape under way, which stops where a message is missing and goes on from there
 *     Calls        what a communicator knows of its calls: by form, size and type, to a tape or to
 *                  the MPI library's method
 *     Recognised   a method of the communicator that asks Calls first
 *
 * All bounds are checked when a tape is made, none while it runs.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

/* The instructions: a word for each of op, phase and up to six operands; see tape.py. */
enum { END, COPY, REDUCE, SEND, FLUSH, TAKE, TAKEN, OPERATIONS };
enum { WIDTH = 8 };
/* What an address is relative to; it is kept in the bits above OFFSET_BITS. */
enum { IN, OUT, SCRATCH, CELL, BASES };
#define OFFSET_BITS 48
#define OFFSET(address) ((address) & (((int64_t)1 << OFFSET_BITS) - 1))
#define BASE(address) ((address) >> OFFSET_BITS)
/* The words of a channel; the same numbers as in channels.py, which the tape's maker compares. */
#define PLACES 4
#define SIZE_BITS 24
/* Sizes, and what is mixed into them, leave the uppermost of their bits free. */
#define LARGEST (((int64_t)1 << (SIZE_BITS - 1)) - 1)
/* The words of a rank's log of calls, as in log.py: their number, and the stamps of the last ones. */
enum { NUMBER = 16, STAMPS = 32, REMEMBERED = 64 };
/* What running comes to. */
enum { DONE, WAITING, ELSEWHERE };
/* Looks at a word before the interpreter is let go, where every rank has a processor: 1-2 us. */
#define SPINS 1500
/* Looks between two offers of the processor, and offers between two looks at the clock. */
#define LOOKS 50
#define YIELDS 16
/* Microseconds that a wait takes before Python looks after it. */
#define PATIENCE 1000

/* ---- Counters -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    long long sent, received;
} Counters;

static PyMemberDef counters_members[] = {
    {"sent", T_LONGLONG, offsetof(Counters, sent), 0, "number of the last message sent"},
    {"received", T_LONGLONG, offsetof(Counters, received), 0, "number of the last one received"},
    {NULL}};

static PyTypeObject CountersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime._tape.Counters",
    .tp_doc = "The numbers of the last messages of a channel.",
    .tp_basicsize = sizeof(Counters),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_members = counters_members,
    .tp_new = PyType_GenericNew,
};

/* ---- Tape ------------------------------------------------------------------------------------ */

typedef _Atomic int64_t Word;

typedef struct {
    Counters *counters;
    Word *line, *taken;
    char *cells;
    int64_t cell_bytes;
} Channel;

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    int64_t itemsize;
} Kernel;

typedef struct {
    PyObject_HEAD
    int64_t *code;
    Py_ssize_t length, sends;
    int64_t sizes[CELL];
    Channel *channels;
    Py_ssize_t channel_count;
    Kernel *kernels;
    Py_ssize_t kernel_count;
    char *scratch;
    int spins;
    int64_t stamp;  /* of the call that it serves; what stands in a word beside a message's number */
    Word *log;      /* where calls are noted, NULL for those that are not; .. */
    Word *alarm;    /* .. and the number, and one more, of that in which somebody has given up */
    PyObject *memory, *owners, *waiter;
} Tape;

/* A message for which there was no cell. */
typedef struct { const int64_t *step; int64_t number; } Unsent;

typedef struct {
    char *base[BASES];
    Py_ssize_t at;
    Py_ssize_t unsent_count;
    Unsent *unsent;
} State;

static inline char *place_of(const State *state, int64_t address)
{
    return state->base[BASE(address)] + OFFSET(address);
}

/* Copy a message into its cell and announce it; 0 if the cell is not free. */
static inline int put(const Tape *tape, const State *state, const int64_t *step, int64_t number)
{
    const Channel *channel = &tape->channels[step[2]];
    int64_t place = number & (PLACES - 1);
    if (atomic_load_explicit(&channel->taken[place], memory_order_acquire) < number - PLACES)
        return 0;
    memcpy(channel->cells + place * channel->cell_bytes, place_of(state, step[3]), (size_t)step[4]);
    atomic_store_explicit(&channel->line[place], number << SIZE_BITS | step[5],
                          memory_order_release);
    return 1;
}

static void put_unsent(const Tape *tape, State *state)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < state->unsent_count; i++)
        if (!put(tape, state, state->unsent[i].step, state->unsent[i].number))
            state->unsent[kept++] = state->unsent[i];
    state->unsent_count = kept;
}

/* The word of the message that a TAKE waits for: WAITING, ELSEWHERE, or DONE if it is in its cell. */
static inline int look(const Tape *tape, State *state, const int64_t *step)
{
    if (state->unsent_count)
        put_unsent(tape, state);
    if (step[0] == FLUSH)
        return state->unsent_count ? WAITING : DONE;
    const Channel *channel = &tape->channels[step[2]];
    int64_t number = channel->counters->received + 1;
    int64_t word = atomic_load_explicit(&channel->line[number & (PLACES - 1)],
                                        memory_order_acquire);
    if (word == (number << SIZE_BITS | step[5]))
        return DONE;
    return word >> SIZE_BITS == number ? ELSEWHERE : WAITING;
}

static int64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Wait for what an instruction misses, up to so many microseconds; for none, only look. */
static int wait_for(const Tape *tape, State *state, const int64_t *step, int64_t patience)
{
    int found = WAITING;
    for (int i = 0; i < (patience ? tape->spins : 1) && found == WAITING; i++)
        found = look(tape, state, step);
    if (found != WAITING || !patience)
        return found;
    Py_BEGIN_ALLOW_THREADS
    int64_t end = microseconds() + patience;
    int looks = tape->spins ? LOOKS : 1;
    do {
        for (int yields = 0; yields < YIELDS && found == WAITING; yields++) {
            sched_yield();
            for (int i = 0; i < looks && found == WAITING; i++)
                found = look(tape, state, step);
        }
    } while (found == WAITING && microseconds() < end);
    Py_END_ALLOW_THREADS
    return found;
}

/* Run from where the state is, until the end or until a message is missing for too long. */
static int run(Tape *tape, State *state, int64_t patience)
{
    const int64_t *step = tape->code + state->at * WIDTH;
    for (;; step += WIDTH) {
        switch (step[0]) {
        case COPY:
            memmove(place_of(state, step[2]), place_of(state, step[3]), (size_t)step[4]);
            break;
        case REDUCE: {
            const Kernel *kernel = &tape->kernels[step[2]];
            npy_intp count = step[6], size = kernel->itemsize, strides[3] = {size, size, size};
            char *operands[3] = {place_of(state, step[4]), place_of(state, step[5]),
                                 place_of(state, step[3])};
            kernel->loop(operands, &count, strides, kernel->data);
            break;
        }
        case SEND: {
            int64_t number = ++tape->channels[step[2]].counters->sent;
            if (!put(tape, state, step, number)) {
                Unsent missing = {step, number};
                state->unsent[state->unsent_count++] = missing;
            }
            break;
        }
        case FLUSH:
            if (!state->unsent_count)
                break;
            /* fall through */
        case TAKE: {
            int found = look(tape, state, step);
            if (found == WAITING)
                found = wait_for(tape, state, step, patience);
            if (found != DONE) {
                state->at = (step - tape->code) / WIDTH;
                return found;
            }
            if (step[0] == TAKE) {
                const Channel *channel = &tape->channels[step[2]];
                state->base[CELL] = channel->cells
                    + ((channel->counters->received + 1) & (PLACES - 1)) * channel->cell_bytes;
            }
            break;
        }
        case TAKEN: {
            const Channel *channel = &tape->channels[step[2]];
            int64_t number = ++channel->counters->received;
            atomic_store_explicit(&channel->taken[number & (PLACES - 1)], number,
                                  memory_order_release);
            break;
        }
        default:
            state->at = (step - tape->code) / WIDTH;
            return DONE;
        }
    }
}

/* ---- making a tape --------------------------------------------------------------------------- */

static int inside(const Tape *tape, int64_t address, int64_t nbytes, int64_t open)
{
    int64_t base = BASE(address), offset = OFFSET(address);
    if (address < 0 || base >= BASES || nbytes < 0 || (base == CELL && open < 0))
        return 0;
    int64_t size = base == CELL ? open : tape->sizes[base];
    return nbytes <= size && offset <= size - nbytes;
}

/* Check every instruction; NULL, or what is wrong. */
static const char *check(Tape *tape)
{
    int64_t open = -1, opened = -1;
    tape->sends = 0;
    for (Py_ssize_t at = 0; at < tape->length; at++) {
        const int64_t *step = tape->code + at * WIDTH;
        if ((step[0] == SEND || step[0] == TAKE || step[0] == TAKEN)
            && (step[2] < 0 || step[2] >= tape->channel_count))
            return "a channel that is not there";
        switch (step[0]) {
        case END:
            if (at != tape->length - 1 || open >= 0)
                return "an end before the end";
            return NULL;
        case COPY:
            if (!inside(tape, step[2], step[4], -1) || !inside(tape, step[3], step[4], open))
                return "a copy out of bounds";
            break;
        case REDUCE: {
            if (step[2] < 0 || step[2] >= tape->kernel_count)
                return "a kernel that is not there";
            int64_t size = tape->kernels[step[2]].itemsize;
            if (step[6] < 0 || step[6] > INT64_MAX / size)
                return "a reduction of too many elements";
            if (!inside(tape, step[3], step[6] * size, -1)
                || !inside(tape, step[4], step[6] * size, open)
                || !inside(tape, step[5], step[6] * size, open)
                || OFFSET(step[3]) % size || OFFSET(step[4]) % size || OFFSET(step[5]) % size)
                return "a reduction out of bounds";
            break;
        }
        case SEND:
            if (!inside(tape, step[3], step[4], -1) || step[4] > LARGEST
                || step[4] > tape->channels[step[2]].cell_bytes)
                return "a message out of bounds";
            tape->sends++;
            break;
        case FLUSH:
            break;
        case TAKE:
            if (open >= 0 || step[4] < 0 || step[4] > LARGEST
                || step[4] > tape->channels[step[2]].cell_bytes)
                return "a message out of bounds";
            open = step[4];
            opened = step[2];
            break;
        case TAKEN:
            if (open < 0 || opened != step[2])
                return "a message is given back that was not taken";
            open = -1;
            break;
        default:
            return "an unknown instruction";
        }
    }
    return "no end";
}

/* The loop of a ufunc on two operands and a result of one type; 0 if there is none. */
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

static void tape_dealloc(Tape *self)
{
    PyObject_GC_UnTrack(self);
    PyMem_Free(self->code);
    PyMem_Free(self->channels);
    PyMem_Free(self->kernels);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->owners);
    Py_CLEAR(self->waiter);
    Py_TYPE(self)->tp_free(self);
}

static int tape_traverse(Tape *self, visitproc visit, void *arg)
{
    Py_VISIT(self->memory);
    Py_VISIT(self->owners);
    Py_VISIT(self->waiter);
    return 0;
}

static int tape_clear(Tape *self)
{
    Py_CLEAR(self->waiter);  /* the others are memory: they stay as long as the tape */
    return 0;
}

static int read_channels(Tape *self, PyObject *channels)
{
    self->channel_count = PyTuple_GET_SIZE(channels);
    self->channels = PyMem_Calloc(self->channel_count + 1, sizeof(Channel));
    if (self->channels == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < self->channel_count; i++) {
        Counters *counters;
        long long line, taken, cells, cell_bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(channels, i), "O!LLLL", &CountersType, &counters,
                              &line, &taken, &cells, &cell_bytes))
            return -1;
        Channel channel = {counters, (Word *)(intptr_t)line, (Word *)(intptr_t)taken,
                           (char *)(intptr_t)cells, cell_bytes};
        self->channels[i] = channel;
    }
    return 0;
}

static int read_kernels(Tape *self, PyObject *kernels)
{
    self->kernel_count = PyTuple_GET_SIZE(kernels);
    self->kernels = PyMem_Calloc(self->kernel_count + 1, sizeof(Kernel));
    if (self->kernels == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < self->kernel_count; i++) {
        PyObject *ufunc, *dtype;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kernels, i), "OO", &ufunc, &dtype))
            return -1;
        if (!find_loop(ufunc, dtype, &self->kernels[i])) {
            PyErr_SetString(PyExc_TypeError, "this ufunc has no loop for this type");
            return -1;
        }
    }
    return 0;
}

static PyObject *tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "sizes", "channels", "kernels", "scratch", "owners", "waiter",
                            "yields", "stamp", "log", "alarm", NULL};
    Py_buffer code, scratch;
    long long in, out, stamp = 0, log = 0, alarm = 0;
    PyObject *channels, *kernels, *memory, *owners, *waiter;
    int yields;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*(LL)O!O!OOOp|LLL", names, &code, &in, &out,
                                     &PyTuple_Type, &channels, &PyTuple_Type, &kernels, &memory,
                                     &owners, &waiter, &yields, &stamp, &log, &alarm))
        return NULL;
    Tape *self = (Tape *)type->tp_alloc(type, 0);
    if (self == NULL || PyObject_GetBuffer(memory, &scratch, PyBUF_WRITABLE) < 0)
        goto failed;
    self->scratch = scratch.buf;
    int64_t sizes[CELL] = {in, out, scratch.len};
    memcpy(self->sizes, sizes, sizeof sizes);
    PyBuffer_Release(&scratch);  /* an array's memory does not move while the array lives */
    self->memory = Py_NewRef(memory);
    self->owners = PyTuple_Pack(2, owners, channels);
    self->waiter = Py_NewRef(waiter);
    self->spins = yields ? 0 : SPINS;
    self->stamp = stamp;
    self->log = (Word *)(intptr_t)log;
    self->alarm = (Word *)(intptr_t)alarm;
    self->length = code.len / (WIDTH * (Py_ssize_t)sizeof(int64_t));
    self->code = PyMem_Malloc(code.len + 1);
    if (self->owners == NULL || self->code == NULL || read_channels(self, channels) < 0
        || read_kernels(self, kernels) < 0)
        goto failed;
    memcpy(self->code, code.buf, code.len);
    const char *problem = code.len % (WIDTH * sizeof(int64_t)) ? "half an instruction" : check(self);
    if (problem != NULL) {
        PyErr_Format(PyExc_ValueError, "the tape has %s", problem);
        goto failed;
    }
    for (int64_t *step = self->code; step[0] != END; step += WIDTH)
        if (step[0] == SEND || step[0] == TAKE)  /* what its word says beside the number */
            step[5] = step[4] ^ (stamp & LARGEST);
    PyBuffer_Release(&code);
    return (PyObject *)self;
failed:
    PyBuffer_Release(&code);
    if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(self);
    return NULL;
}

static PyTypeObject RunType;

typedef struct {
    PyObject_HEAD
    Tape *tape;
    State state;
    PyObject *buffers;
} Run;

/* A run with a state of its own; ``buffers`` must stay alive until its end. */
static Run *new_run(Tape *tape, char *in, char *out, PyObject *buffers)
{
    Run *self = PyObject_New(Run, &RunType);
    if (self == NULL)
        return NULL;
    memset(&self->state, 0, sizeof self->state);
    self->tape = (Tape *)Py_NewRef(tape);
    self->buffers = Py_XNewRef(buffers);
    self->state.base[IN] = in;
    self->state.base[OUT] = out;
    self->state.base[SCRATCH] = tape->scratch;
    self->state.unsent = PyMem_Malloc((tape->sends + 1) * sizeof(Unsent));
    if (self->state.unsent == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

#define FEW 8

/* Note a call in this rank's log, for others to see; tell whether nobody has given up by now. */
static inline int opened(const Tape *tape)
{
    Word *log = tape->log;
    int64_t number = INT64_MAX;
    if (log != NULL) {
        number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
        atomic_store_explicit(&log[STAMPS + (number & (REMEMBERED - 1))], tape->stamp,
                              memory_order_relaxed);
        atomic_store_explicit(&log[NUMBER], number, memory_order_release);
    }
    if (tape->alarm == NULL)
        return 1;
    int64_t alarm = atomic_load_explicit(tape->alarm, memory_order_acquire);
    return !alarm || number < alarm - 1;
}

/* Run a tape to its end; what waits long is left to Python, which may raise an error. */
static int play(Tape *tape, char *in, char *out, PyObject *buffers)
{
    Unsent few[FEW];
    State state = {{in, out, tape->scratch, NULL}, 0, 0, few};
    Run *under_way = NULL;
    int found = WAITING, here = opened(tape) && tape->sends <= FEW;
    Py_INCREF(tape);
    if (here)
        found = run(tape, &state, PATIENCE);
    if (found != DONE) {
        under_way = new_run(tape, in, out, buffers);
        if (under_way != NULL) {
            if (here) {
                Unsent *own = under_way->state.unsent;
                memcpy(own, few, state.unsent_count * sizeof(Unsent));
                under_way->state = state;
                under_way->state.unsent = own;
            }
            PyObject *over = PyObject_CallOneArg(tape->waiter, (PyObject *)under_way);
            found = over == NULL ? -1 : DONE;
            Py_XDECREF(over);
            Py_DECREF(under_way);
        } else
            found = -1;
    }
    Py_DECREF(tape);
    return found == DONE ? 0 : -1;
}

static PyObject *tape_run(Tape *self, PyObject *args)
{
    long long in, out;
    if (!PyArg_ParseTuple(args, "LL", &in, &out)
        || play(self, (char *)(intptr_t)in, (char *)(intptr_t)out, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tape_begin(Tape *self, PyObject *args)
{
    long long in, out;
    PyObject *buffers = NULL;
    if (!PyArg_ParseTuple(args, "LL|O", &in, &out, &buffers))
        return NULL;
    return (PyObject *)new_run(self, (char *)(intptr_t)in, (char *)(intptr_t)out, buffers);
}

static PyMethodDef tape_methods[] = {
    {"run", (PyCFunction)tape_run, METH_VARARGS, "Run to the end, on input and output at addresses."},
    {"begin", (PyCFunction)tape_begin, METH_VARARGS,
     "Make a run on input and output at addresses, to be driven step by step."},
    {NULL}};

static PyMemberDef tape_members[] = {
    {"owners", T_OBJECT, offsetof(Tape, owners), READONLY, "what the tape keeps alive"},
    {NULL}};

static PyTypeObject TapeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime._tape.Tape",
    .tp_doc = "Instructions that were checked, with the channels and the scratch they use.",
    .tp_basicsize = sizeof(Tape),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = tape_methods,
    .tp_members = tape_members,
    .tp_new = tape_new,
    .tp_dealloc = (destructor)tape_dealloc,
    .tp_traverse = (traverseproc)tape_traverse,
    .tp_clear = (inquiry)tape_clear,
};

/* ---- Run ------------------------------------------------------------------------------------- */

static void run_dealloc(Run *self)
{
    PyMem_Free(self->state.unsent);
    Py_XDECREF(self->tape);
    Py_XDECREF(self->buffers);
    PyObject_Free(self);
}

static PyObject *run_advance(Run *self, PyObject *args)
{
    long long patience = PATIENCE;
    if (!PyArg_ParseTuple(args, "|L", &patience))
        return NULL;
    return PyLong_FromLong(run(self->tape, &self->state, patience));
}

static PyObject *run_restart(Run *self, PyObject *none)
{
    (void)none;
    self->state.at = self->state.unsent_count = 0;
    Py_RETURN_NONE;
}

/* Python has done what the next message is for: go on behind it. */
static PyObject *run_skip(Run *self, PyObject *none)
{
    (void)none;
    const int64_t *code = self->tape->code;
    if (code[self->state.at * WIDTH] != TAKE) {
        PyErr_SetString(PyExc_ValueError, "no message is awaited");
        return NULL;
    }
    while (code[self->state.at * WIDTH] != TAKEN)
        self->state.at++;
    self->tape->channels[code[self->state.at * WIDTH + 2]].counters->received++;
    self->state.at++;
    Py_RETURN_NONE;
}

static PyMethodDef run_methods[] = {
    {"advance", (PyCFunction)run_advance, METH_VARARGS,
     "Go on for so many microseconds after a message was found missing; DONE, WAITING, ELSEWHERE."},
    {"restart", (PyCFunction)run_restart, METH_NOARGS, "Go back to the beginning."},
    {"skip", (PyCFunction)run_skip, METH_NOARGS, "Go on behind the message that is awaited."},
    {NULL}};

static PyMemberDef run_members[] = {
    {"at", T_PYSSIZET, offsetof(Run, state.at), READONLY, "the instruction it has come to"},
    {"input", T_LONGLONG, offsetof(Run, state.base[IN]), READONLY, "address of the input"},
    {"output", T_LONGLONG, offsetof(Run, state.base[OUT]), READONLY, "address of the output"},
    {NULL}};

static PyTypeObject RunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime._tape.Run",
    .tp_doc = "A tape under way.",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = run_methods,
    .tp_members = run_members,
    .tp_dealloc = (destructor)run_dealloc,
};

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Forms of a buffer argument. */
enum { ABSENT, NOTHING, IN_ITS_PLACE, ARRAY };
enum { SENT, RECEIVED, SIDES };
enum { MOST_ARGUMENTS = 6, MOST_ENTRIES = 2048, FIRST_SLOTS = 64 };

typedef struct {
    int form;
    Py_ssize_t nbytes;
    PyArray_Descr *dtype;
    PyObject *type;  /* of [array, type] and [array, count, type] */
    long count;
} Side;

/* All that says whether two calls are alike. */
typedef struct {
    long method, root;
    PyObject *op, *counts;
    Side sides[SIDES];
} Key;

typedef struct {
    Key key;
    uint64_t hash;
    PyObject *target;  /* a tape, or a method of the MPI library; NULL in a free slot */
    int side[2];       /* which argument's memory input and output are in, and how far from it */
    int64_t shift[2];
} Entry;

typedef struct {
    PyObject_HEAD
    Entry *slots;
    size_t slot_count, used;
} Calls;

static PyObject *in_place, *calls_name;

static inline int is_array(PyObject *object, int flags)
{
    return Py_IS_TYPE(object, &PyArray_Type)
        && PyArray_CHKFLAGS((PyArrayObject *)object, flags);
}

static inline int read_side(PyObject *object, int flags, Side *side, char **memory)
{
    if (object == Py_None || object == in_place) {
        side->form = object == Py_None ? NOTHING : IN_ITS_PLACE;
        return 1;
    }
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
        if (size < 2 || size > 3)
            return 0;
        side->type = PySequence_Fast_GET_ITEM(object, size - 1);
        if (size == 3) {
            PyObject *count = PySequence_Fast_GET_ITEM(object, 1);
            if (!PyLong_CheckExact(count))
                return 0;
            side->count = PyLong_AsLong(count);
            if (side->count < 0) {
                PyErr_Clear();
                return 0;
            }
            side->count++;  /* none is not a count of 0 */
        }
        object = PySequence_Fast_GET_ITEM(object, 0);
    }
    if (!is_array(object, flags))
        return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    side->form = ARRAY;
    side->nbytes = PyArray_NBYTES(array);
    side->dtype = PyArray_DESCR(array);
    *memory = PyArray_BYTES(array);
    return 1;
}

static int plain_counts(PyObject *counts)
{
    if (!PyList_CheckExact(counts) && !PyTuple_CheckExact(counts))
        return 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(counts); i++)
        if (!PyLong_CheckExact(PySequence_Fast_GET_ITEM(counts, i)))
            return 0;
    return 1;
}

/* Make the key of a call, by the roles of its arguments: s, r and b are buffers (b one for both
   ways), o an operator, n a root, c counts. 0 for a call that is not understood here. */
static inline int read_call(long method, const char *roles, PyObject *const *arguments, Key *key,
                            char **memory)
{
    memset(key, 0, sizeof *key);
    key->method = method;
    for (; *roles; roles++, arguments++) {
        PyObject *argument = *arguments;
        switch (*roles) {
        case 's':
            if (!read_side(argument, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED,
                           &key->sides[SENT], &memory[SENT]))
                return 0;
            break;
        case 'r':
        case 'b':
            if (!read_side(argument, NPY_ARRAY_CARRAY, &key->sides[RECEIVED], &memory[RECEIVED]))
                return 0;
            break;
        case 'o':
            key->op = argument;
            break;
        case 'n':
            if (!PyLong_CheckExact(argument))
                return 0;
            key->root = PyLong_AsLong(argument);
            if (key->root < 0) {
                PyErr_Clear();
                return 0;
            }
            break;
        default:
            if (argument != Py_None && !plain_counts(argument))
                return 0;
            key->counts = argument == Py_None ? NULL : argument;
        }
    }
    const Side *sides = key->sides;
    /* Buffers that overlap are an error, or a copy. */
    return sides[SENT].form != ARRAY || sides[RECEIVED].form != ARRAY
        || memory[SENT] >= memory[RECEIVED] + sides[RECEIVED].nbytes
        || memory[RECEIVED] >= memory[SENT] + sides[SENT].nbytes;
}

static inline uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static inline uint64_t hash_of(const Key *key)
{
    uint64_t hash = mixed(key->method, key->root);
    hash = mixed(hash, (uintptr_t)key->op);
    for (int i = 0; i < SIDES; i++) {
        hash = mixed(hash, key->sides[i].nbytes << 2 | key->sides[i].form);
        hash = mixed(hash, key->sides[i].count);
        hash = mixed(hash, (uintptr_t)key->sides[i].dtype ^ (uintptr_t)key->sides[i].type << 1);
    }
    return hash;
}

static int same_counts(PyObject *one, PyObject *other)
{
    if (one == NULL || other == NULL)
        return one == other;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(one);
    if (PySequence_Fast_GET_SIZE(other) != size)
        return 0;
    for (Py_ssize_t i = 0; i < size; i++)
        if (PyObject_RichCompareBool(PySequence_Fast_GET_ITEM(one, i),
                                     PySequence_Fast_GET_ITEM(other, i), Py_EQ) != 1)
            return 0;
    return 1;
}

static inline int same_side(const Side *one, const Side *other)
{
    return one->form == other->form && one->nbytes == other->nbytes && one->dtype == other->dtype
        && one->type == other->type && one->count == other->count;
}

static inline int same_key(const Key *one, const Key *other)
{
    return one->method == other->method && one->root == other->root && one->op == other->op
        && same_side(&one->sides[SENT], &other->sides[SENT])
        && same_side(&one->sides[RECEIVED], &other->sides[RECEIVED])
        && same_counts(one->counts, other->counts);
}

/* The slot of a key, or the free one where it would be. */
static inline Entry *slot_of(const Calls *calls, const Key *key, uint64_t hash)
{
    size_t mask = calls->slot_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        Entry *entry = &calls->slots[i];
        if (entry->target == NULL || (entry->hash == hash && same_key(&entry->key, key)))
            return entry;
    }
}

static void drop_entries(Entry *slots, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Entry *entry = &slots[i];
        if (entry->target == NULL)
            continue;
        Py_XDECREF(entry->key.op);
        Py_XDECREF(entry->key.counts);
        for (int side = 0; side < SIDES; side++) {
            Py_XDECREF(entry->key.sides[side].dtype);
            Py_XDECREF(entry->key.sides[side].type);
        }
        Py_DECREF(entry->target);
    }
    PyMem_Free(slots);
}

static int calls_forget(Calls *self)
{
    Entry *old = self->slots;
    size_t count = self->slot_count;
    Entry *fresh = PyMem_Calloc(FIRST_SLOTS, sizeof(Entry));
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->slots = fresh;
    self->slot_count = FIRST_SLOTS;
    self->used = 0;
    if (old != NULL)
        drop_entries(old, count);
    return 0;
}

static int calls_grow(Calls *self)
{
    size_t count = 2 * self->slot_count;
    Calls larger = {.slots = PyMem_Calloc(count, sizeof(Entry)), .slot_count = count};
    if (larger.slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->slot_count; i++)
        if (self->slots[i].target != NULL)
            *slot_of(&larger, &self->slots[i].key, self->slots[i].hash) = self->slots[i];
    PyMem_Free(self->slots);
    self->slots = larger.slots;
    self->slot_count = count;
    return 0;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    Calls *self = (Calls *)type->tp_alloc(type, 0);
    if (self != NULL && calls_forget(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void calls_dealloc(Calls *self)
{
    PyObject_GC_UnTrack(self);
    if (self->slots != NULL)
        drop_entries(self->slots, self->slot_count);
    Py_TYPE(self)->tp_free(self);
}

static int calls_traverse(Calls *self, visitproc visit, void *arg)
{
    for (size_t i = 0; self->slots != NULL && i < self->slot_count; i++)
        Py_VISIT(self->slots[i].target);
    return 0;
}

static int calls_clear_references(Calls *self)
{
    Entry *old = self->slots;
    self->slots = NULL;
    if (old != NULL)
        drop_entries(old, self->slot_count);
    return 0;
}

static PyObject *calls_store(Calls *self, PyObject *args)
{
    long method;
    const char *roles;
    PyObject *arguments, *target;
    int side[2] = {-1, -1};
    long long shift[2] = {0, 0};
    if (!PyArg_ParseTuple(args, "lsO!O|(iL)(iL)", &method, &roles, &PyTuple_Type, &arguments,
                          &target, &side[IN], &shift[IN], &side[OUT], &shift[OUT]))
        return NULL;
    if (PyTuple_GET_SIZE(arguments) != (Py_ssize_t)strlen(roles)
        || side[IN] >= SIDES || side[OUT] >= SIDES) {
        PyErr_SetString(PyExc_ValueError, "not the arguments of such a call");
        return NULL;
    }
    Key key;
    char *memory[SIDES] = {NULL, NULL};
    if (!read_call(method, roles, &PyTuple_GET_ITEM(arguments, 0), &key, memory))
        Py_RETURN_FALSE;
    if (self->used >= MOST_ENTRIES && calls_forget(self) < 0)
        return NULL;
    if (4 * self->used >= 3 * self->slot_count && calls_grow(self) < 0)
        return NULL;
    PyObject *counts = NULL;
    if (key.counts != NULL) {
        counts = PySequence_Tuple(key.counts);
        if (counts == NULL)
            return NULL;
        key.counts = counts;
    }
    uint64_t hash = hash_of(&key);
    Entry *entry = slot_of(self, &key, hash);
    if (entry->target == NULL) {
        Py_XINCREF(key.op);
        Py_XINCREF(key.counts);
        for (int i = 0; i < SIDES; i++) {
            Py_XINCREF(key.sides[i].dtype);
            Py_XINCREF(key.sides[i].type);
        }
        entry->key = key;
        entry->hash = hash;
        self->used++;
    }
    Py_XDECREF(counts);
    for (int i = 0; i < 2; i++) {
        entry->side[i] = side[i];
        entry->shift[i] = shift[i];
    }
    Py_XSETREF(entry->target, Py_NewRef(target));
    Py_RETURN_TRUE;
}

static PyObject *calls_clear(Calls *self, PyObject *none)
{
    (void)none;
    if (calls_forget(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static Py_ssize_t calls_length(Calls *self)
{
    return (Py_ssize_t)self->used;
}

static PyMethodDef calls_methods[] = {
    {"store", (PyCFunction)calls_store, METH_VARARGS,
     "Note who serves calls like this one, where such calls can be told; tell whether they can."},
    {"clear", (PyCFunction)calls_clear, METH_NOARGS, "Forget all calls."},
    {NULL}};

static PySequenceMethods calls_as_sequence = {.sq_length = (lenfunc)calls_length};

static PyTypeObject CallsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime._tape.Calls",
    .tp_doc = "Who serves which calls.",
    .tp_basicsize = sizeof(Calls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_as_sequence = &calls_as_sequence,
    .tp_methods = calls_methods,
    .tp_new = calls_new,
    .tp_dealloc = (destructor)calls_dealloc,
    .tp_traverse = (traverseproc)calls_traverse,
    .tp_clear = (inquiry)calls_clear_references,
};

/* ---- Recognised ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow, *names, *defaults, *attributes;
    long method;
    char roles[MOST_ARGUMENTS + 1];
    Py_ssize_t count;
} Recognised;

/* Put arguments into their places; 0 where some are missing or too many, which the slow way tells. */
static inline int arrange(const Recognised *self, PyObject *const *args, Py_ssize_t given,
                          PyObject *names, PyObject **places)
{
    if (given > self->count)
        return 0;
    Py_ssize_t i = 0;
    for (; i < given; i++)
        places[i] = args[i];
    Py_ssize_t first = self->count - PyTuple_GET_SIZE(self->defaults);
    for (; i < self->count; i++)
        places[i] = i < first ? NULL : PyTuple_GET_ITEM(self->defaults, i - first);
    for (Py_ssize_t named = 0; names != NULL && named < PyTuple_GET_SIZE(names); named++) {
        PyObject *name = PyTuple_GET_ITEM(names, named);
        for (i = given; i < self->count; i++)
            if (PyTuple_GET_ITEM(self->names, i) == name)
                break;
        if (i == self->count)
            return 0;
        places[i] = args[given + named];
    }
    for (i = given; i < self->count; i++)
        if (places[i] == NULL)
            return 0;
    return 1;
}

static PyObject *recognised_call(Recognised *self, PyObject *const *args, size_t flags,
                                 PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *places[MOST_ARGUMENTS];
    Key key;
    char *memory[SIDES] = {NULL, NULL};
    if (given < 1)
        goto slow;
    PyObject *calls = PyObject_GetAttr(args[0], calls_name);
    if (calls == NULL) {
        PyErr_Clear();
        goto slow;
    }
    if (!Py_IS_TYPE(calls, &CallsType) || !((Calls *)calls)->used
        || !arrange(self, args + 1, given - 1, names, places)
        || !read_call(self->method, self->roles, places, &key, memory)) {
        Py_DECREF(calls);
        goto slow;
    }
    Entry entry = *slot_of((Calls *)calls, &key, hash_of(&key));
    PyObject *target = Py_XNewRef(entry.target);
    Py_DECREF(calls);
    if (target == NULL)
        goto slow;
    if (!Py_IS_TYPE(target, &TapeType)) {
        PyObject *result = PyObject_Vectorcall(target, args, flags, names);
        Py_DECREF(target);
        return result;
    }
    char *bases[2];
    for (int i = 0; i < 2; i++)
        bases[i] = entry.side[i] < 0 ? NULL : memory[entry.side[i]] + entry.shift[i];
    /* The caller holds the arguments until this returns. */
    int failed = play((Tape *)target, bases[IN], bases[OUT], NULL);
    Py_DECREF(target);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
slow:
    return PyObject_Vectorcall(self->slow, args, flags, names);
}

static PyObject *recognised_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long method;
    const char *roles;
    PyObject *slow, *names, *defaults;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OlsO!O!", &slow, &method, &roles, &PyTuple_Type, &names,
                          &PyTuple_Type, &defaults))
        return NULL;
    Py_ssize_t count = (Py_ssize_t)strlen(roles);
    if (count > MOST_ARGUMENTS || PyTuple_GET_SIZE(names) != count
        || PyTuple_GET_SIZE(defaults) > count) {
        PyErr_SetString(PyExc_ValueError, "roles, names and defaults do not agree");
        return NULL;
    }
    Recognised *self = (Recognised *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = (vectorcallfunc)recognised_call;
    self->slow = Py_NewRef(slow);
    self->names = Py_NewRef(names);
    self->defaults = Py_NewRef(defaults);
    self->method = method;
    self->count = count;
    memcpy(self->roles, roles, count + 1);
    return (PyObject *)self;
}

static void recognised_dealloc(Recognised *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->slow);
    Py_CLEAR(self->names);
    Py_CLEAR(self->defaults);
    Py_CLEAR(self->attributes);
    Py_TYPE(self)->tp_free(self);
}

static int recognised_traverse(Recognised *self, visitproc visit, void *arg)
{
    Py_VISIT(self->slow);
    Py_VISIT(self->defaults);
    Py_VISIT(self->attributes);
    return 0;
}

static PyObject *recognised_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyGetSetDef recognised_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};

static PyTypeObject RecognisedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime._tape.Recognised",
    .tp_doc = NULL,
    .tp_basicsize = sizeof(Recognised),
    .tp_vectorcall_offset = offsetof(Recognised, vectorcall),
    .tp_dictoffset = offsetof(Recognised, attributes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = recognised_get,
    .tp_getset = recognised_attributes,
    .tp_new = recognised_new,
    .tp_dealloc = (destructor)recognised_dealloc,
    .tp_traverse = (traverseproc)recognised_traverse,
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

static PyObject *set_in_place(PyObject *module, PyObject *object)
{
    (void)module;
    Py_XSETREF(in_place, Py_NewRef(object));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"has_loop", has_loop, METH_VARARGS,
     "Tell whether a ufunc has a loop for two operands and a result of a type."},
    {"set_in_place", set_in_place, METH_O, "Say which object stands for a buffer in place."},
    {NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_tape", .m_doc = "The compiled executor.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__tape(void)
{
    import_array();
    import_umath();
    if (!atomic_is_lock_free((Word *)&counters_members)) {
        PyErr_SetString(PyExc_ImportError, "no lock-free words of 64 bits");
        return NULL;
    }
    calls_name = PyUnicode_InternFromString("_calls");
    PyObject *self = PyModule_Create(&module);
    static struct { const char *name; PyTypeObject *type; } types[] = {
        {"Counters", &CountersType}, {"Tape", &TapeType}, {"Run", &RunType}, {"Calls", &CallsType},
        {"Recognised", &RecognisedType}};
    static struct { const char *name; long value; } numbers[] = {
        {"PLACES", PLACES}, {"SIZE_BITS", SIZE_BITS}, {"WIDTH", WIDTH},
        {"OFFSET_BITS", OFFSET_BITS}, {"NUMBER", NUMBER}, {"STAMPS", STAMPS},
        {"REMEMBERED", REMEMBERED}, {"DONE", DONE}, {"WAITING", WAITING},
        {"ELSEWHERE", ELSEWHERE}, {"OPERATIONS", OPERATIONS}, {"BASES", BASES}};
    if (self == NULL || calls_name == NULL)
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
