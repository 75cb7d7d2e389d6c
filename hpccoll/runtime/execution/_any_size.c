/* Calls of one form and any size; see _module.c for an overview.
 *
 * The form of a call is its key without sizes and counts. The operands of its plan are sums of the
 * bounds of the call's blocks (hpccoll/ir/sizes.py), so a new size costs some multiplications.
 * The MPI library's method needs no operands, only a call hash for the log.
 */
#include "_any_size.h"
#include "_compiled_plan.h"

/* How the blocks follow from the arguments: an even cut of a vector, blocks of one size, or one
 * count per rank; and a native call whose ranks do not know each other's counts. */
enum { VECTOR, UNIFORM, COUNTED, UNKNOWN, CUTS };
/* What an argument must hold: anything, the same number of elements per unit of the call's size,
 * all blocks or more, this rank's block, or blocks by its own counts. */
enum { ANY, SCALED, ALL, OWN, PARTS, EXTENTS };
/* Calls whose size repeats so often get their own entry in the cache. */
enum { RECENT = 256, OFTEN = 3 };

typedef struct {
    int64_t bound, factor;
} Term;
/* An operand: the word of the compiled plan, a constant, and its terms. */
typedef struct {
    int64_t word, constant, first, end;
} Operand;
typedef struct {
    uint64_t hash;
    int64_t times;
} Recent;

struct AnySize {
    PyObject_HEAD
    PyObject *target; /* a compiled plan, or a native method */
    long cut, extent[SIDES];
    long long rank, size, blocks, unit, itemsize, least, end;
    /* Segments of a call; elements of a block in one, at most, and what divides them, 0 if longer
     * blocks are cut in another way; bytes of a message, at most. */
    long long segments, most, segment_unit, most_bytes;
    long long element[SIDES], scale[SIDES]; /* bytes of a caller's element; elements per unit */
    long long form, amount; /* call hash of the form; amount of data per unit of size */
    int equal, side[2];     /* COUNTED: all counts are equal */
    Py_ssize_t operand_count;
    Operand *operands;
    Term *terms;
    int64_t *bounds, total, longest, shortest; /* of the blocks of the last call */
    Recent recent[RECENT];
};

/* Return the bytes of an argument; -1 if its count, that of a block, exceeds its memory. */
static inline int64_t bytes_of(const AnySize *self, const Side *side, int which)
{
    if (!side->count) {
        return side->nbytes;
    }
    int64_t unit = self->element[which] * self->scale[which];
    return side->count - 1 > side->nbytes / unit ? -1 : (side->count - 1) * unit;
}

/* Compute the bounds of the blocks of a vector of some elements, as vector_counts in layouts.py. */
static void cut_vector(AnySize *self, int64_t total)
{
    int64_t units = total / self->unit, each = units / self->blocks, more = units % self->blocks;
    for (int64_t i = 0; i < self->blocks; i++) {
        self->bounds[i] = self->unit * (i * each + (i < more ? i : more));
    }
    self->bounds[self->blocks] = total;
    int64_t last = total - self->bounds[self->blocks - 1], first = self->unit * (each + (more > 0));
    self->longest = last > first || self->blocks == 1 ? last : first;
    self->shortest = self->blocks == 1 ? last : self->unit * each;
}

/* Read one count per rank; return 0 unless all are at least 1 and the blocks have no gaps. */
static int read_counts(AnySize *self, const Vector *counts, const Vector *displs, int64_t scale)
{
    if (counts->length != self->size + 1 || (displs->length && displs->length != counts->length)) {
        return 0;
    }
    int64_t first = counts->values[0], limit = INT64_MAX / (self->size + 1);
    int equal = 1;
    self->longest = 0;
    self->shortest = INT64_MAX;
    for (Py_ssize_t i = 0; i < self->size; i++) {
        int64_t count = counts->values[i];
        if (count < 1 || count > limit / scale
            || (displs->length && displs->values[i] != self->bounds[i] / scale)) {
            return 0;
        }
        equal = equal && count == first;
        count *= scale;
        self->bounds[i + 1] = self->bounds[i] + count;
        self->longest = count > self->longest ? count : self->longest;
        self->shortest = count < self->shortest ? count : self->shortest;
    }
    return equal == self->equal;
}

/* Check an argument that has blocks by its own counts and displacements. */
static int holds_parts(const AnySize *self, const Side *side, int which)
{
    const Vector *counts = &side->counts, *displs = &side->displs;
    if (counts->length != self->size + 1 || (displs->length && displs->length != counts->length)) {
        return 0;
    }
    int64_t room = side->nbytes / self->element[which], end = 0;
    for (Py_ssize_t i = 0; i < self->size; i++) {
        int64_t count = counts->values[i], start = displs->length ? displs->values[i] : end;
        if (count < 1 || start < 0 || start > room || count > room - start) {
            return 0;
        }
        end = start + count;
    }
    return 1;
}

/* Return the bytes of this rank's block in a native call of unknown counts; -1 for none. */
static int64_t own_bytes(const AnySize *self, const Key *key, int which)
{
    const Side *side = &key->sides[which];
    if (self->extent[which] == PARTS) {
        return side->counts.values[self->rank] * self->element[which];
    }
    return self->extent[which] == OWN ? bytes_of(self, side, which) : -1;
}

static int fits_unknown(const AnySize *self, const Key *key)
{
    for (int i = 0; i < SIDES; i++) {
        const Side *side = &key->sides[i];
        if (self->extent[i] == PARTS
                ? !holds_parts(self, side, i)
                : self->extent[i] == OWN
                      && (side->counts.length || bytes_of(self, side, i) < self->element[i]
                          || side->nbytes % self->element[i])) {
            return 0;
        }
    }
    int64_t sent = own_bytes(self, key, SENT), received = own_bytes(self, key, RECEIVED);
    return sent < 0 || received < 0 || sent == received;
}

/* Compute the elements of a segment, behind the bounds of the blocks, as segment_elements in
 * plan.py; return 0 if the blocks have another number of segments, or one has nothing in the last
 * of them. */
static int cut_segments(AnySize *self)
{
    int64_t number = self->segments;
    if (number == 1 || self->longest > number * self->most
        || self->longest <= (number - 1) * self->most) {
        return number == 1 && self->longest <= self->most;
    }
    int64_t each = (self->longest + number - 1) / number, unit = self->segment_unit;
    each = (each + unit - 1) / unit * unit;
    each = each < self->most ? each : self->most;
    self->bounds[self->blocks + 1] = self->bounds[self->blocks] + each;
    return self->shortest > (number - 1) * each;
}

/* Compute the blocks of a call; return 0 if its arguments do not fit or need Python's checks. */
static int read_blocks(AnySize *self, const Key *key)
{
    int64_t total = -1;
    for (int i = 0; i < SIDES; i++) {
        if (key->sides[i].count && key->sides[i].displs.length) {
            return 0; /* a count and a displacement */
        }
    }
    if (self->cut == UNKNOWN) {
        return fits_unknown(self, key);
    }
    if (self->cut == COUNTED) {
        int in_call = key->counts.length > 0;
        const Vector *counts = in_call ? &key->counts : &key->sides[RECEIVED].counts;
        if (key->sides[SENT].counts.length || (in_call && key->sides[RECEIVED].counts.length)
            || !read_counts(self, counts, &key->sides[RECEIVED].displs,
                            in_call ? 1 : self->element[RECEIVED] / self->itemsize)) {
            return 0;
        }
        total = self->bounds[self->size];
    }
    for (int i = 0; i < SIDES; i++) {
        const Side *side = &key->sides[i];
        if (self->extent[i] == ANY) {
            continue;
        }
        if (self->cut != COUNTED && side->counts.length) {
            return 0;
        }
        int64_t nbytes = bytes_of(self, side, i), unit = self->itemsize;
        if (nbytes < 0 || nbytes % unit) {
            return 0;
        }
        int64_t held = nbytes / unit;
        if (self->extent[i] == SCALED) {
            if (held % self->scale[i] || (total >= 0 && held != total * self->scale[i])) {
                return 0;
            }
            total = held / self->scale[i];
        }
        else if (self->extent[i] == ALL
                     ? held < total || (!side->counts.length && held != total)
                     : held != self->bounds[self->rank + 1] - self->bounds[self->rank]) {
            return 0;
        }
    }
    if (total < self->least || total >= self->end) {
        return 0;
    }
    self->total = total;
    if (self->cut == VECTOR) {
        cut_vector(self, total);
    }
    else if (self->cut == UNIFORM) {
        self->longest = self->shortest = self->bounds[1] = total;
    }
    return cut_segments(self);
}

/* The same arithmetic as in hpccoll/transport/call_hashes.py. */
static int64_t hash_at(int64_t form, int64_t amount)
{
    const uint64_t kind = UINT64_C(7) << 20, top = UINT64_C(1) << 47;
    uint64_t x = ((uint64_t)form & ~kind) ^ (uint64_t)(amount + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 32;
    return (int64_t)((x & (top - 1) & ~kind) | ((uint64_t)form & kind) | top);
}

PyObject *hash_of_amount(PyObject *module, PyObject *args)
{
    long long form, amount;
    (void)module;
    return PyArg_ParseTuple(args, "LL", &form, &amount) ? PyLong_FromLongLong(hash_at(form, amount))
                                                        : NULL;
}

/* Compute the operands of a plan for the blocks of a call; return 0 if it cannot run them. */
static int compute(AnySize *self, CompiledPlan *plan)
{
    for (Py_ssize_t i = 0; i < self->operand_count; i++) {
        const Operand *operand = &self->operands[i];
        int64_t value = operand->constant;
        for (int64_t term = operand->first; term < operand->end; term++) {
            value += self->terms[term].factor * self->bounds[self->terms[term].bound];
        }
        plan->code[operand->word] = value;
    }
    for (const int64_t *step = plan->code; step[0] != END; step += WIDTH) {
        if ((step[0] == SEND || step[0] == TAKE) && step[4] > self->most_bytes) {
            return 0;
        }
    }
    if (check_plan(plan) != NULL) {
        return 0;
    }
    mark_messages(plan);
    if (self->cut == COUNTED) {
        for (int64_t i = 0; i < self->size; i++) {
            plan->counts[1 + i] = self->bounds[i + 1] - self->bounds[i];
        }
    }
    else {
        plan->counts[1] = self->total;
    }
    return 1;
}

/* Return 1 if the blocks are those of the compiled plan's last call. */
static int computed(const AnySize *self, const CompiledPlan *plan)
{
    if (self->cut != COUNTED) {
        return plan->counts[1] == self->total;
    }
    for (int64_t i = 0; i < self->size; i++) {
        if (plan->counts[1 + i] != self->bounds[i + 1] - self->bounds[i]) {
            return 0;
        }
    }
    return 1;
}

int accepts(const AnySize *self, const Key *key)
{
    return read_blocks((AnySize *)self, key);
}

/* Return a compiled plan or a method for a call; NULL without an error if Python has to run it. */
PyObject *target_for(AnySize *self, const Key *key)
{
    if (!read_blocks(self, key)) {
        return NULL;
    }
    CallHash call_hash = {self->form, 0, 0};
    if (self->form && self->amount) {
        int64_t amount = self->total * self->amount;
        CallHash full = {hash_at(self->form, amount), self->form, amount};
        call_hash = full;
    }
    if (Py_IS_TYPE(self->target, &NotedType)) {
        ((Noted *)self->target)->call_hash = call_hash;
    }
    if (!Py_IS_TYPE(self->target, &CompiledPlanType)) {
        return self->target;
    }
    CompiledPlan *plan = (CompiledPlan *)self->target;
    int64_t sizes[2];
    for (int i = 0; i < 2; i++) {
        sizes[i] = self->side[i] < 0 ? 0 : key->sides[self->side[i]].nbytes;
    }
    if (computed(self, plan) && sizes[IN] == plan->sizes[IN] && sizes[OUT] == plan->sizes[OUT]) {
        return self->target;
    }
    plan->sizes[IN] = sizes[IN];
    plan->sizes[OUT] = sizes[OUT];
    plan->call_hash = call_hash;
    if (compute(self, plan)) {
        return self->target;
    }
    plan->counts[1] = -1; /* its words are a mixture */
    return NULL;
}

const int *sides_of(const AnySize *self)
{
    return self->side;
}

/* Return 1 if it is for the same calls as an earlier one, whose limits were too small. */
int replaces(const AnySize *self, const AnySize *other)
{
    return self->least == other->least && self->end == other->end && self->equal == other->equal
           && self->segments == other->segments;
}

/* Count a call; return 1 if calls like it repeat. */
int repeats(AnySize *self, uint64_t hash)
{
    Recent *recent = &self->recent[hash & (RECENT - 1)];
    if (recent->hash != hash) {
        recent->hash = hash;
        recent->times = 0;
    }
    return ++recent->times >= OFTEN;
}

/* Return a target that stays as it is now. */
PyObject *copy_of(PyObject *target)
{
    if (Py_IS_TYPE(target, &CompiledPlanType)) {
        return (PyObject *)copy_plan((const CompiledPlan *)target);
    }
    if (Py_IS_TYPE(target, &NotedType)) {
        return (PyObject *)copy_noted((const Noted *)target);
    }
    return Py_NewRef(target);
}

/* ---- the type -------------------------------------------------------------------------------- */

/* Read the operands: (word, constant, ((bound, factor), ...)), ...; return -1 on an error. */
static int read_operands(AnySize *self, PyObject *operands)
{
    Py_ssize_t words = 0;
    if (Py_IS_TYPE(self->target, &CompiledPlanType)) {
        words = ((CompiledPlan *)self->target)->length * WIDTH;
    }
    self->operand_count = PyTuple_GET_SIZE(operands);
    Py_ssize_t terms = 0;
    for (Py_ssize_t i = 0; i < self->operand_count; i++) {
        PyObject *operand = PyTuple_GET_ITEM(operands, i);
        if (!PyTuple_Check(operand) || PyTuple_GET_SIZE(operand) != 3
            || !PyTuple_Check(PyTuple_GET_ITEM(operand, 2))) {
            goto wrong;
        }
        terms += PyTuple_GET_SIZE(PyTuple_GET_ITEM(operand, 2));
    }
    self->operands = PyMem_Calloc(self->operand_count + 1, sizeof(Operand));
    self->terms = PyMem_Calloc(terms + 1, sizeof(Term));
    if (self->operands == NULL || self->terms == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t at = 0;
    for (Py_ssize_t i = 0; i < self->operand_count; i++) {
        long long word, constant;
        PyObject *parts;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operands, i), "LLO!", &word, &constant,
                              &PyTuple_Type, &parts)) {
            return -1;
        }
        if (word < 0 || word >= words) {
            goto wrong;
        }
        Operand operand = {word, constant, at, at + PyTuple_GET_SIZE(parts)};
        for (Py_ssize_t part = 0; part < PyTuple_GET_SIZE(parts); part++) {
            long long bound, factor;
            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parts, part), "LL", &bound, &factor)) {
                return -1;
            }
            if (bound < 0 || bound > self->blocks + 1) {
                goto wrong;
            }
            Term term = {bound, factor};
            self->terms[at++] = term;
        }
        self->operands[i] = operand;
    }
    return 0;
wrong:
    PyErr_SetString(PyExc_ValueError, "an operand outside of the compiled plan or of the blocks");
    return -1;
}

static PyObject *any_size_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"target",    "cut",      "ranks",    "blocks",   "itemsize",
                            "sizes",     "segments", "elements", "extents",  "scales",
                            "call_hash", "equal",    "sides",    "operands", NULL};
    PyObject *target, *operands;
    AnySize *self = (AnySize *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "Ol(LL)(LL)L(LL)(LLLL)(LL)(ll)(LL)(LL)p(ii)O!", names, &target,
            &self->cut, &self->rank, &self->size, &self->blocks, &self->unit, &self->itemsize,
            &self->least, &self->end, &self->segments, &self->most, &self->segment_unit,
            &self->most_bytes, &self->element[SENT], &self->element[RECEIVED], &self->extent[SENT],
            &self->extent[RECEIVED], &self->scale[SENT], &self->scale[RECEIVED], &self->form,
            &self->amount, &self->equal, &self->side[IN], &self->side[OUT], &PyTuple_Type,
            &operands)) {
        goto failed;
    }
    /* Its call hash changes with the size. */
    self->target = Py_IS_TYPE(target, &NotedType) ? (PyObject *)copy_noted((Noted *)target)
                                                  : Py_NewRef(target);
    if (self->target == NULL) {
        goto failed;
    }
    if (self->cut < 0 || self->cut >= CUTS || self->size < 1 || self->rank < 0
        || self->rank >= self->size || self->blocks < (self->cut == COUNTED ? self->size : 1)
        || self->segments < 1 || self->most < 1 || self->segment_unit < (self->segments > 1 ? 1 : 0)
        || self->unit < 1 || self->itemsize < 1 || self->least < 1
        || self->end > INT64_MAX / 64 / self->itemsize / self->size || self->element[SENT] < 1
        || self->element[RECEIVED] < 1 || self->scale[SENT] < 1 || self->scale[RECEIVED] < 1
        || self->side[IN] >= SIDES || self->side[OUT] >= SIDES) {
        PyErr_SetString(PyExc_ValueError, "invalid numbers for calls of any size");
        goto failed;
    }
    self->bounds = PyMem_Calloc(self->blocks + self->size + 2, sizeof(int64_t));
    if (self->bounds == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    if (read_operands(self, operands) < 0) {
        goto failed;
    }
    if (Py_IS_TYPE(target, &CompiledPlanType)) {
        CompiledPlan *plan = (CompiledPlan *)target;
        Py_ssize_t counts = self->cut == COUNTED ? self->size : 1;
        PyMem_Free(plan->counts);
        plan->counts = PyMem_Calloc(1 + counts, sizeof(int64_t));
        if (plan->counts == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
        plan->counts[0] = counts;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int any_size_clear(AnySize *self)
{
    set_none(&self->target);
    return 0;
}

static void any_size_dealloc(AnySize *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->target);
    PyMem_Free(self->operands);
    PyMem_Free(self->terms);
    PyMem_Free(self->bounds);
    Py_TYPE(self)->tp_free(self);
}

static int any_size_traverse(AnySize *self, visitproc visit, void *arg)
{
    Py_VISIT(self->target);
    return 0;
}

PyTypeObject AnySizeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.AnySize",
    .tp_doc = "Target of calls of one form and any size.",
    .tp_basicsize = sizeof(AnySize),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = any_size_new,
    .tp_dealloc = (destructor)any_size_dealloc,
    .tp_traverse = (traverseproc)any_size_traverse,
    .tp_clear = (inquiry)any_size_clear,
};
