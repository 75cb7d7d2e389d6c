/* Lower-case allreduce of one Python float or integer.
 *
 * The ranks exchange frames (hpccoll/comm/objects/wire.py) by recursive doubling, one plan a round.
 * Python continues from the first round whose operands are not two numbers of one type.
 */
#include "_call_guard.h"
#include "_compiled_plan.h"
#include "_conversions.h"
#include "_run.h"

enum { SUM, PROD, MAX, MIN, OPERATORS };
/* Position of the last bits of a call's number, above its call hash; as in messages.py. */
enum { NUMBER_SHIFT = 48 };

typedef struct {
    CompiledPlan *plan;
    char *given, *arriving;
    int lower; /* this rank's number is the left operand */
} Round;

typedef struct {
    PyObject_HEAD
    Round *rounds;
    Py_ssize_t count;
    PyObject *kept;
    CallGuard *call_guard;           /* the lock of the communicator */
    unsigned char floating, integer; /* first byte of a frame */
    int room;                        /* index of the byte that is set if all ranks continue */
    int call_hash;                   /* index of the number and the call hash of the call */
    int64_t call_hashes[OPERATORS];  /* call hashes of allreduce by operator; .. */
    Word *log;                       /* .. and the log that counts calls; NULL without one */
} Numbers;

static PyObject *operators[OPERATORS], *numbers_name, *resume_name, *op_name;

static void numbers_dealloc(Numbers *self)
{
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_CLEAR(self->rounds[i].plan);
    }
    PyMem_Free(self->rounds);
    Py_CLEAR(self->kept);
    Py_CLEAR(self->call_guard);
    Py_TYPE(self)->tp_free(self);
}

static int numbers_traverse(Numbers *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->rounds[i].plan);
    }
    Py_VISIT(self->kept);
    return 0;
}

static PyObject *numbers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *rounds, *kept, *call_guard;
    int floating, integer, room, call_hash;
    long long call_hashes[OPERATORS], log;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!iiii(LLLL)LOO!", &PyTuple_Type, &rounds, &floating, &integer,
                          &room, &call_hash, &call_hashes[SUM], &call_hashes[PROD],
                          &call_hashes[MAX], &call_hashes[MIN], &log, &kept, &CallGuardType,
                          &call_guard)) {
        return NULL;
    }
    Numbers *self = (Numbers *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->kept = Py_NewRef(kept);
    self->call_guard = (CallGuard *)Py_NewRef(call_guard);
    self->floating = (unsigned char)floating;
    self->integer = (unsigned char)integer;
    self->room = room;
    self->call_hash = call_hash;
    for (int i = 0; i < OPERATORS; i++) {
        self->call_hashes[i] = call_hashes[i];
    }
    self->log = (Word *)(intptr_t)log;
    self->rounds = PyMem_Calloc(PyTuple_GET_SIZE(rounds) + 1, sizeof(Round));
    if (self->rounds == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rounds); i++) {
        PyObject *plan;
        long long given, arriving;
        int lower;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rounds, i), "O!LLp", &CompiledPlanType, &plan,
                              &given, &arriving, &lower)) {
            Py_DECREF(self);
            return NULL;
        }
        Round round = {(CompiledPlan *)Py_NewRef(plan), (char *)(intptr_t)given,
                       (char *)(intptr_t)arriving, lower};
        int64_t end = call_hash + (int64_t)sizeof self->call_hashes[0];
        if (((CompiledPlan *)plan)->sizes[IN] < end || ((CompiledPlan *)plan)->sizes[OUT] < end
            || room < 9 || call_hash <= room) {
            PyErr_SetString(PyExc_ValueError, "a frame is too short");
            Py_DECREF(plan);
            Py_DECREF(self);
            return NULL;
        }
        self->rounds[self->count++] = round;
    }
    return (PyObject *)self;
}

PyTypeObject NumbersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Numbers",
    .tp_doc = "Reduction of Python numbers over all ranks.",
    .tp_basicsize = sizeof(Numbers),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = numbers_new,
    .tp_dealloc = (destructor)numbers_dealloc,
    .tp_traverse = (traverseproc)numbers_traverse,
};

/* Combine two floats like mpi4py's operators. */
static double combine(int op, double left, double right)
{
    switch (op) {
    case SUM: return left + right;
    case PROD: return left * right;
    case MAX: return right > left ? right : left;
    default: return right < left ? right : left;
    }
}

/* Combine two integers; return 1 if the result exceeds 64 bits. */
static int combine_integers(int op, long long left, long long right, long long *result)
{
    switch (op) {
    case SUM: return __builtin_add_overflow(left, right, result);
    case PROD: return __builtin_mul_overflow(left, right, result);
    case MAX: *result = right > left ? right : left; return 0;
    default: *result = right < left ? right : left; return 0;
    }
}

/* Continue in Python with this value; this round's frames may have been exchanged. */
static PyObject *resume(PyObject *comm, PyObject *value, PyObject *op, Py_ssize_t round,
                        int exchanged)
{
    if (value == NULL) {
        return NULL;
    }
    PyObject *distance = PyLong_FromSsize_t((Py_ssize_t)1 << round), *result = NULL;
    if (distance != NULL) {
        result = PyObject_CallMethodObjArgs(comm, resume_name, value, op, distance,
                                            exchanged ? Py_True : Py_False, NULL);
    }
    Py_XDECREF(distance);
    Py_DECREF(value);
    return result;
}

static PyObject *too_large(int op, long long left, long long right)
{
    PyObject *one = PyLong_FromLongLong(left), *other = PyLong_FromLongLong(right), *result = NULL;
    if (one != NULL && other != NULL) {
        result = op == SUM ? PyNumber_Add(one, other) : PyNumber_Multiply(one, other);
    }
    Py_XDECREF(one);
    Py_XDECREF(other);
    return result;
}

static PyObject *reduce_numbers(Numbers *self, PyObject *comm, PyObject *object, PyObject *op,
                                int kind, int64_t number)
{
    int64_t call_hash = self->call_hashes[kind] | (int64_t)((uint64_t)number << NUMBER_SHIFT);
    int floating = PyFloat_CheckExact(object), failed;
    unsigned char mark = floating ? self->floating : self->integer;
    union {
        double f;
        long long i;
        char bytes[8];
    } value, other, result;
    if (floating) {
        value.f = PyFloat_AS_DOUBLE(object);
    }
    else {
        value.i = PyLong_AsLongLong(object);
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Round *round = &self->rounds[i];
        round->given[0] = (char)mark;
        memcpy(round->given + 1, value.bytes, sizeof value);
        round->given[self->room] = 1;
        memcpy(round->given + self->call_hash, &call_hash, sizeof call_hash);
        Py_INCREF(self);
        failed = play(round->plan, round->given, round->arriving, NULL);
        Py_DECREF(self);
        if (failed) {
            return NULL;
        }
        if ((unsigned char)round->arriving[0] != mark || !round->arriving[self->room]
            || memcmp(round->arriving + self->call_hash, &call_hash, sizeof call_hash)) {
            return resume(comm,
                          floating ? PyFloat_FromDouble(value.f) : PyLong_FromLongLong(value.i), op,
                          i, 1);
        }
        memcpy(other.bytes, round->arriving + 1, sizeof other);
        const char *left = round->lower ? value.bytes : other.bytes;
        const char *right = round->lower ? other.bytes : value.bytes;
        if (floating) {
            double one, two;
            memcpy(&one, left, sizeof one);
            memcpy(&two, right, sizeof two);
            result.f = combine(kind, one, two);
        }
        else {
            long long one, two;
            memcpy(&one, left, sizeof one);
            memcpy(&two, right, sizeof two);
            if (combine_integers(kind, one, two, &result.i)) {
                PyObject *large = too_large(kind, one, two);
                return i + 1 == self->count ? large : resume(comm, large, op, i + 1, 0);
            }
        }
        value = result;
    }
    return floating ? PyFloat_FromDouble(value.f) : PyLong_FromLongLong(value.i);
}

/* allreduce(self, sendobj, op) for supported numbers and operators; otherwise falls back. */
PyObject *number_allreduce(Recognised *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags), named = names ? PyTuple_GET_SIZE(names) : 0;
    if (given + named < 2 || given + named > 3 || given < 2
        || (named && PyTuple_GET_ITEM(names, 0) != op_name)) {
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    PyObject *object = args[1], *op = given + named == 3 ? args[2] : operators[SUM];
    int kind = 0, overflow = 0;
    while (kind < OPERATORS && operators[kind] != op) {
        kind++;
    }
    if (op == NULL || kind == OPERATORS
        || !(PyFloat_CheckExact(object) || PyLong_CheckExact(object))) {
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    if (PyLong_CheckExact(object)) {
        PyLong_AsLongLongAndOverflow(object, &overflow);
    }
    PyObject *numbers = overflow ? NULL : PyObject_GetAttr(args[0], numbers_name);
    if (numbers == NULL || !Py_IS_TYPE(numbers, &NumbersType)) {
        PyErr_Clear();
        Py_XDECREF(numbers);
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    CallGuard *call_guard = ((Numbers *)numbers)->call_guard;
    Word *log = ((Numbers *)numbers)->log;
    PyObject *result = NULL;
    if (log != NULL && atomic_load_explicit(&log[ALARM], memory_order_acquire)) {
        Py_DECREF(numbers); /* a rank has failed, maybe in an earlier call */
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    if (acquire(call_guard) == 0) {
        int64_t number = 0;
        if (log != NULL) {
            number = atomic_load_explicit(&log[NUMBER], memory_order_relaxed) + 1;
            CallHash call_hash = {((Numbers *)numbers)->call_hashes[kind], 0, 0};
            note_start(log, number, call_hash);
            atomic_store_explicit(&log[NUMBER], number, memory_order_release);
        }
        result = reduce_numbers((Numbers *)numbers, args[0], object, op, kind, number);
        if (log != NULL && result != NULL) {
            note_end(log, number);
        }
        call_guard->owner_thread = 0;
    }
    Py_DECREF(numbers);
    return result;
}

/* Set the supported operators: sum, product, maximum, minimum. */
PyObject *set_operators(PyObject *module, PyObject *args)
{
    PyObject *given[OPERATORS];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &given[SUM], &given[PROD], &given[MAX], &given[MIN])) {
        return NULL;
    }
    for (int i = 0; i < OPERATORS; i++) {
        Py_XSETREF(operators[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

int prepare_numbers(void)
{
    numbers_name = PyUnicode_InternFromString("_numbers");
    resume_name = PyUnicode_InternFromString("_resume_allreduce");
    op_name = PyUnicode_InternFromString("op");
    return numbers_name && resume_name && op_name ? 0 : -1;
}
