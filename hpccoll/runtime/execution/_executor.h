/* Declarations of the compiled executor; see _executor.c for its parts. */
#ifndef HPCCOLL_TAPE_H
#define HPCCOLL_TAPE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hpccoll_executor_array_api
#ifndef IMPORTS_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include "_half.h"

/* Bases of addresses. */
enum { IN, OUT, SCRATCH, CELL, BASES };
/* Results of a run. */
enum { DONE, WAITING, ELSEWHERE, REMOTE };
/* Words of a rank's log of calls, as in log.py: the alarm after a failure; the number of calls, the
 * number of the pending native call, that of the next call with a check behind it, call hashes of the last calls, their start and end times, the call hash
 * of their form and their amount. */
enum { ALARM = 0, NUMBER = 16, INSIDE = 17, CHECK = 22, HASHES = 32, REMEMBERED = 64, STARTS = 96, ENDS = 160,
       FORMS = 224, AMOUNTS = 288 };
/* The instructions: a word for each of op, phase and up to six operands; see compiled_plan.py. */
enum { END, COPY, REDUCE, SEND, FLUSH, TAKE, TAKEN, NOTE, POST, START, AWAIT, OPERATIONS };
enum { WIDTH = 8 };
/* Ways of sending a message: while others of the call are under way; alone; while this rank receives
 * another one, and reduces none. */
enum { PIPELINED, ALONE, EXCHANGED };
/* Numbers of a moment, as in moments.py. */
enum { MOMENT = 3 };
/* Microseconds of a wait before Python handles it. */
#define PATIENCE 1000
/* The same with other pending operations, which need progress too. */
#define SLICE 50
/* Bytes of input and output from which a plan runs without the GIL: copies of some 10 us. */
#define LONG_CALL (128 << 10)

/* Addresses keep their base in the bits above these. */
#define OFFSET_BITS 48
#define OFFSET(address) ((address) & (((int64_t)1 << OFFSET_BITS) - 1))
#define BASE(address) ((address) >> OFFSET_BITS)
/* The words of a channel; the same numbers as in channels.py, which the maker of plans compares. */
#define PLACES 4
#define SMALL 1024  /* bytes of a small cell */
/* Words behind those of `taken`: ASLEEP while the receiver sleeps for a message, or the sender for a
 * cell. It is 1 in both halves, one of which is the futex. Then the receiver's costs of reads of the
 * sender's memory, and of copies out of cells, in ps per byte. */
enum { NO_MESSAGE = PLACES, NO_CELL, READ_COST, TAKE_COST };
#define ASLEEP ((int64_t)1 << 32 | 1)
#define SIZE_BITS 24
/* Sizes, and values mixed into them, do not use their highest bit. */
#define LARGEST (((int64_t)1 << (SIZE_BITS - 1)) - 1)
/* In the place of the size: the message is not in its cell. The words of its place in the line, at
 * these distances, say where it is, its bytes and its call hash. */
#define NOT_IN_CELL (((int64_t)1 << SIZE_BITS) - 1)
enum { WHERE = PLACES, NBYTES = 2 * PLACES, CALL_HASH = 3 * PLACES };
/* Polls of a word before the GIL is released, if every rank has its own core: 1-2 us. */
#define SPINS 1500

typedef struct {
    PyObject_HEAD
    long long sent, received;
} Counters;

typedef _Atomic int64_t Word;

/* Return the machine's clock in nanoseconds at the kernel's last tick, at most some milliseconds
 * old: a precise read takes as long as a small collective. */
static inline int64_t last_tick(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Call hash of a call: of all its fields; of its form, which excludes the amount of data, or 0 if the
 * call hash itself is that of a description; and the amount. */
typedef struct { int64_t value, form, amount; } CallHash;

/* Record the start of a call with its call hash in a log. */
static inline void note_start(Word *log, int64_t number, CallHash call_hash)
{
    int64_t place = number & (REMEMBERED - 1);
    atomic_store_explicit(&log[HASHES + place], call_hash.value, memory_order_relaxed);
    if (call_hash.form) {  /* otherwise an old form stays, which does not give this call hash */
        atomic_store_explicit(&log[FORMS + place], call_hash.form, memory_order_relaxed);
        atomic_store_explicit(&log[AMOUNTS + place], call_hash.amount, memory_order_relaxed);
    }
    atomic_store_explicit(&log[STARTS + place], last_tick(), memory_order_relaxed);
    atomic_store_explicit(&log[ENDS + place], 0, memory_order_relaxed);
}

/* Record the end of a call. */
static inline void note_end(Word *log, int64_t number)
{
    atomic_store_explicit(&log[ENDS + (number & (REMEMBERED - 1))], last_tick(),
                          memory_order_relaxed);
}

typedef struct {
    Counters *counters;
    Word *line, *taken;
    char *small, *cells;
    int64_t cell_bytes;
    int64_t process;   /* number of the process of the peer; 0 if its memory cannot be read */
    int64_t *regions;  /* registered memory: number of rows; the words of a row; the rows .. */
    int64_t column;    /* .. with the address, here, of the peer's part in this column */
} Channel;

/* Words of a row of registered memory: address and bytes of this rank's part, then, by rank of the
 * node, the addresses of all parts in this process. See channels.py. */
enum { REGION_START, REGION_BYTES, REGION_PARTS };

/* Return the cell of a message, by its number and its size. */
static inline char *
cell_of(const Channel *channel, int64_t number, int64_t nbytes)
{
    int64_t place = number & (PLACES - 1);
    if (nbytes <= SMALL) {
        return channel->small + place * SMALL;
    }
    return channel->cells + place * channel->cell_bytes;
}

/* Reduction kernel: a loop of NumPy, or a kernel for 16-bit floats. */
typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    const HalfKernel *half;
    int64_t itemsize; /* 0 without a reduction */
} Kernel;

typedef struct {
    PyObject_HEAD
    int64_t *code;
    Py_ssize_t length, sends;
    int64_t sizes[CELL];
    Channel *channels;
    Py_ssize_t channel_count;
    Kernel kernel;
    char *scratch, *accumulator;
    int64_t accumulator_bytes;
    int spins, remote; /* remote: it has MPI messages */
    int64_t copy_cost;    /* cost of recent copies of long messages into cells, in ps per byte */
    CallHash call_hash;     /* call hash of its call, in a word next to a message's number */
    int64_t *counts; /* of its call, if its form has plans for any size: their number, and they */
    Word *log;       /* log of calls, NULL if they are not recorded; .. */
    Word *alarm;     /* .. and the number plus one of the call in which a rank has failed */
    int64_t *moments;      /* recorded moments: their number, and a ring of rows; .. */
    int64_t moments_kept;  /* .. the number of rows, a power of two */
    PyObject *memory, *owners, *waiter;
} CompiledPlan;

/* A message for which there was no place, or, if `announced`, that its receiver has not read. */
typedef struct { const int64_t *step; int64_t number; int announced; } Unsent;

typedef struct {
    char *base[BASES];
    Py_ssize_t at;
    Py_ssize_t unsent_count;
    Unsent *unsent;
    int detached;  /* its thread has released the GIL */
} State;

typedef struct {
    PyObject_HEAD
    CompiledPlan *plan;
    State state;
    PyObject *buffers;
} Run;

/* Native method whose calls are recorded in the log. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *method, *raise_failure, *failed, *check;
    Word *log, *alarm;
    CallHash call_hash;
} Noted;

/* Lock of a communicator that admits one call at a time. It changes only with the GIL. */
typedef struct {
    PyObject_HEAD
    unsigned long owner_thread;  /* a thread, 0 for none */
    unsigned long outer_thread;  /* the thread whose call makes calls that are part of it, 0 for none */
} CallGuard;

enum { MOST_ARGUMENTS = 6 };

/* Method with a fast path; `slow` is the Python method of its class. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow, *names, *defaults, *attributes;
    long method;
    char roles[MOST_ARGUMENTS + 1];
    Py_ssize_t count;
} Recognised;

extern PyTypeObject CountersType, CompiledPlanType, RunType, CallsType, RecognisedType;
extern PyTypeObject TokenType, RequestQueueType, CompiledRunType, BeginType, NumbersType, NotedType;
extern PyTypeObject CallGuardType, NoteType;

/* _running.c */
int advance(CompiledPlan *plan, State *state, int64_t timeout_us);
int advance_detached(CompiledPlan *plan, State *state, int64_t timeout_us);
void note_moment(int64_t *moments, int64_t kept, int64_t where, int64_t what);

/* _executor.c */
const char *check_plan(CompiledPlan *plan);
void mark_messages(CompiledPlan *plan);
CompiledPlan *copy_plan(const CompiledPlan *plan);
int play(CompiledPlan *plan, char *in, char *out, PyObject *buffers);
Run *new_run(CompiledPlan *plan, char *in, char *out, PyObject *buffers);

/* _call_guard.c */
int refused(const CallGuard *call_guard);
PyObject *set_refusal(PyObject *module, PyObject *function);

static inline int acquire(CallGuard *call_guard)
{
    unsigned long thread = PyThread_get_thread_ident();
    if (call_guard->owner_thread
        || (call_guard->outer_thread && call_guard->outer_thread != thread))
        return refused(call_guard);
    call_guard->owner_thread = thread;
    return 0;
}

/* _call_log.c */
Noted *copy_noted(const Noted *noted);

/* _any_size.c */
PyObject *hash_of_amount(PyObject *module, PyObject *args);

/* _finalize.c */
PyObject *check_at_exit(PyObject *module, PyObject *args);

/* _recognition.c, _arguments.c */
int prepare_recognition(void);
int prepare_arguments(void);
PyObject *set_in_place(PyObject *module, PyObject *object);
PyObject *new_method(PyObject *slow, vectorcallfunc call);

/* _requests.c */
int prepare_requests(void);
int others_under_way(void);
PyObject *begin_call(PyObject *target, char *in, char *out, PyObject *buffers);
PyObject *set_progress(PyObject *module, PyObject *args);
PyObject *shortcut(PyObject *module, PyObject *args);

/* _profiled.c */
extern PyTypeObject CallRowsType, SeenType, WatchedMethodType;
int prepare_watching(void);

/* _phase_events.c */
PyObject *note_opening(PyObject *module, PyObject *args);
PyObject *note_closing(PyObject *module, PyObject *args);
PyObject *note_moments(PyObject *module, PyObject *args);
PyObject *note_amid(PyObject *module, PyObject *args);

/* _conversions.c */
int prepare_numbers(void);
PyObject *set_operators(PyObject *module, PyObject *args);
PyObject *number_allreduce(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);

#endif
