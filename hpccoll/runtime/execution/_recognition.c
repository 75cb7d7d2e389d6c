/* Cache of calls, looked up by their arguments; see _module.c for an overview. */
#include "_any_size.h"
#include "_call_guard.h"
#include "_compiled_plan.h"
#include "_events.h"
#include "_method.h"
#include "_recognition.h"
#include "_requests.h"
#include "_run.h"

/* ---- Calls ----------------------------------------------------------------------------------- */

enum { MOST_ENTRIES = 2048, FIRST_SLOTS = 64, HASHED = 64, FORM_SLOTS = 64, MOST_RANGES = 16 };

typedef struct {
    Key key;
    uint64_t hash;
    PyObject *target; /* a compiled plan, or a method of the MPI library; NULL in a free slot */
    int side[2];      /* the arguments that contain input and output, and the offsets */
    int64_t shift[2];
    int64_t kind; /* of its calls, if they are recorded as events; 0 while it is unknown */
} Entry;

/* Targets for calls of one form, each for a range of sizes. */
typedef struct {
    Key key; /* vectors have a length and no values */
    uint64_t hash;
    int used, oldest;
    AnySize *ranges[MOST_RANGES];
} Form;

typedef struct {
    PyObject_HEAD
    Entry *slots;
    size_t slot_count, used;
    Form *forms;           /* FORM_SLOTS of them; NULL before the first */
    CallGuard *call_guard; /* lock of the communicator; set before any call is cached */
    long recorded;         /* number of methods, the first ones, whose calls are events, and .. */
    int comm;              /* .. of the communicator in them */
} Calls;

static PyObject *calls_name;
/* The slots of an empty cache: one that is never filled. */
static Entry no_slots[1];

static int same_vector(const Vector *one, const Vector *other)
{
    if (one->length != other->length) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < one->length - 1; i++) {
        if (one->values[i] != other->values[i]) {
            return 0;
        }
    }
    return 1;
}

/* Copy the values, which belong to a running call. */
static int keep_vector(Vector *vector)
{
    if (!vector->length) {
        return 0;
    }
    int64_t *values = PyMem_Malloc(vector->length * sizeof(int64_t));
    if (values == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (vector->length > 1) {
        memcpy(values, vector->values, (vector->length - 1) * sizeof(int64_t));
    }
    vector->values = values;
    return 0;
}

static inline uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* Hash only the first values: a vector may have one per rank. */
static inline uint64_t mixed_vector(uint64_t hash, const Vector *vector)
{
    for (Py_ssize_t i = 0; i < vector->length - 1 && i < HASHED; i++) {
        hash = mixed(hash, (uint64_t)vector->values[i]);
    }
    return hash;
}

static inline uint64_t hash_of(const Key *key)
{
    uint64_t hash = mixed(key->method, key->root);
    hash = mixed_vector(mixed(hash, (uintptr_t)key->op), &key->counts);
    for (int i = 0; i < SIDES; i++) {
        hash = mixed(hash, key->sides[i].nbytes << 2 | key->sides[i].form);
        hash = mixed(hash, key->sides[i].count);
        hash = mixed(hash, (uintptr_t)key->sides[i].dtype ^ (uintptr_t)key->sides[i].type << 1);
        hash = mixed_vector(hash, &key->sides[i].counts);
    }
    return hash;
}

static inline int same_side(const Side *one, const Side *other)
{
    return one->form == other->form && one->nbytes == other->nbytes && one->dtype == other->dtype
           && one->type == other->type && one->count == other->count
           && same_vector(&one->counts, &other->counts)
           && same_vector(&one->displs, &other->displs);
}

static inline int same_key(const Key *one, const Key *other)
{
    return one->method == other->method && one->root == other->root && one->op == other->op
           && same_side(&one->sides[SENT], &other->sides[SENT])
           && same_side(&one->sides[RECEIVED], &other->sides[RECEIVED])
           && same_vector(&one->counts, &other->counts);
}

/* Return the slot of a key, or the free slot for it. */
static inline Entry *slot_of(const Calls *calls, const Key *key, uint64_t hash)
{
    size_t mask = calls->slot_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        Entry *entry = &calls->slots[i];
        if (entry->target == NULL || (entry->hash == hash && same_key(&entry->key, key))) {
            return entry;
        }
    }
}

static void take_references(Key *key)
{
    Py_XINCREF(key->op);
    for (int i = 0; i < SIDES; i++) {
        Py_XINCREF(key->sides[i].dtype);
        Py_XINCREF(key->sides[i].type);
    }
}

/* Release the references and values of a key. */
static void drop_key(Key *key)
{
    Vector *vectors[VECTORS];
    list_vectors(key, vectors);
    for (int i = 0; i < VECTORS; i++) {
        PyMem_Free(vectors[i]->values);
    }
    Py_XDECREF(key->op);
    for (int i = 0; i < SIDES; i++) {
        Py_XDECREF(key->sides[i].dtype);
        Py_XDECREF(key->sides[i].type);
    }
}

/* Take the references of a key, and copy its values; return -1 without memory, and then it has
 * none. */
static int keep_key(Key *key)
{
    Vector *vectors[VECTORS];
    list_vectors(key, vectors);
    for (int i = 0; i < VECTORS; i++) {
        if (keep_vector(vectors[i]) < 0) {
            while (i--) {
                PyMem_Free(vectors[i]->values);
            }
            return -1;
        }
    }
    take_references(key);
    return 0;
}

static void drop_entries(Entry *slots, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Entry *entry = &slots[i];
        if (entry->target == NULL) {
            continue;
        }
        drop_key(&entry->key);
        Py_DECREF(entry->target);
    }
    if (slots != no_slots) {
        PyMem_Free(slots);
    }
}

/* ---- forms ----------------------------------------------------------------------------------- */

static inline uint64_t form_hash(const Key *key)
{
    uint64_t hash = mixed(key->method, key->root);
    hash = mixed(mixed(hash, (uintptr_t)key->op), (uint64_t)key->counts.length);
    for (int i = 0; i < SIDES; i++) {
        const Side *side = &key->sides[i];
        hash = mixed(hash, (uint64_t)side->counts.length << 3 | side->form);
        hash = mixed(hash, (uint64_t)side->displs.length << 1 | (side->count != 0));
        hash = mixed(hash, (uintptr_t)side->dtype ^ (uintptr_t)side->type << 1);
    }
    return hash;
}

static inline int same_form_side(const Side *one, const Side *other)
{
    return one->form == other->form && one->dtype == other->dtype && one->type == other->type
           && !one->count == !other->count && one->counts.length == other->counts.length
           && one->displs.length == other->displs.length;
}

static inline int same_form(const Key *one, const Key *other)
{
    return one->method == other->method && one->root == other->root && one->op == other->op
           && one->counts.length == other->counts.length
           && same_form_side(&one->sides[SENT], &other->sides[SENT])
           && same_form_side(&one->sides[RECEIVED], &other->sides[RECEIVED]);
}

/* Return the form of a key, or a free slot for it; NULL if all are in use. */
static inline Form *form_of(const Calls *calls, const Key *key, uint64_t hash)
{
    if (calls->forms == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < FORM_SLOTS; i++) {
        Form *form = &calls->forms[(hash + i) & (FORM_SLOTS - 1)];
        if (!form->used || (form->hash == hash && same_form(&form->key, key))) {
            return form;
        }
    }
    return NULL;
}

/* Return the target for calls of a key's form and size, a borrowed reference; NULL for none. */
static inline AnySize *any_size_of(const Calls *calls, const Key *key)
{
    Form *form = form_of(calls, key, form_hash(key));
    for (int i = 0; form != NULL && i < form->used; i++) {
        if (accepts(form->ranges[i], key)) {
            return form->ranges[i];
        }
    }
    return NULL;
}

static void drop_forms(Calls *self)
{
    Form *forms = self->forms;
    self->forms = NULL;
    for (size_t i = 0; forms != NULL && i < FORM_SLOTS; i++) {
        if (!forms[i].used) {
            continue;
        }
        drop_key(&forms[i].key);
        for (int range = 0; range < forms[i].used; range++) {
            Py_DECREF(forms[i].ranges[range]);
        }
    }
    PyMem_Free(forms);
}

/* Keep a form without its sizes, and take its references. */
static void keep_form(Key *key)
{
    Vector *vectors[VECTORS];
    list_vectors(key, vectors);
    for (int i = 0; i < VECTORS; i++) {
        vectors[i]->values = NULL;
    }
    take_references(key);
}

/* Store the target of calls of a form in a range of sizes. */
static PyObject *calls_store_any_size(Calls *self, PyObject *args)
{
    long method;
    const char *roles;
    PyObject *arguments;
    AnySize *target;
    if (!PyArg_ParseTuple(args, "lsO!O!", &method, &roles, &PyTuple_Type, &arguments, &AnySizeType,
                          &target)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(arguments) != (Py_ssize_t)strlen(roles)) {
        PyErr_SetString(PyExc_ValueError, "invalid arguments for this call");
        return NULL;
    }
    Key key;
    Arguments read;
    int accepted = read_call(method, roles, &PyTuple_GET_ITEM(arguments, 0), &key, &read)
                   && accepts(target, &key);
    release_arguments(&read); /* a form has no values */
    if (!accepted) {
        Py_RETURN_FALSE;
    }
    if (self->forms == NULL && (self->forms = PyMem_Calloc(FORM_SLOTS, sizeof(Form))) == NULL) {
        return PyErr_NoMemory();
    }
    uint64_t hash = form_hash(&key);
    Form *form = form_of(self, &key, hash);
    if (form == NULL) {
        Py_RETURN_FALSE; /* other forms have all places */
    }
    if (!form->used) {
        keep_form(&key);
        form->key = key;
        form->hash = hash;
    }
    int place = 0;
    while (place < form->used && !replaces(target, form->ranges[place])) {
        place++;
    }
    if (place == MOST_RANGES) {
        place = form->oldest++ % MOST_RANGES;
    }
    else if (place == form->used) {
        form->used++;
    }
    Py_XSETREF(form->ranges[place], (AnySize *)Py_NewRef(target));
    Py_RETURN_TRUE;
}

/* Remove all calls. It is empty before the first target is destroyed, which may run Python code. */
static int calls_forget(Calls *self)
{
    Entry *old = self->slots;
    size_t count = self->slot_count;
    self->slots = no_slots;
    self->slot_count = 1;
    self->used = 0;
    drop_forms(self);
    drop_entries(old, count);
    return 0;
}

static int calls_grow(Calls *self)
{
    size_t count = self->slots == no_slots ? FIRST_SLOTS : 2 * self->slot_count;
    Calls larger = {.slots = PyMem_Calloc(count, sizeof(Entry)), .slot_count = count};
    if (larger.slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->slot_count; i++) {
        if (self->slots[i].target != NULL) {
            *slot_of(&larger, &self->slots[i].key, self->slots[i].hash) = self->slots[i];
        }
    }
    if (self->slots != no_slots) {
        PyMem_Free(self->slots);
    }
    self->slots = larger.slots;
    self->slot_count = count;
    return 0;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    Calls *self = (Calls *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->slots = no_slots;
        self->slot_count = 1;
    }
    return (PyObject *)self;
}

static void calls_dealloc(Calls *self)
{
    PyObject_GC_UnTrack(self);
    calls_forget(self);
    Py_XDECREF(self->call_guard);
    Py_TYPE(self)->tp_free(self);
}

static int calls_traverse(Calls *self, visitproc visit, void *arg)
{
    for (size_t i = 0; i < self->slot_count; i++) {
        Py_VISIT(self->slots[i].target);
    }
    for (size_t i = 0; self->forms != NULL && i < FORM_SLOTS; i++) {
        for (int range = 0; range < self->forms[i].used; range++) {
            Py_VISIT(self->forms[i].ranges[range]);
        }
    }
    return 0;
}

/* Store the target of a key; return -1 without memory. */
static int put_entry(Calls *self, Key *key, uint64_t hash, PyObject *target, const int *side,
                     const long long *shift)
{
    if (self->used >= MOST_ENTRIES) {
        calls_forget(self);
    }
    if (4 * (self->used + 1) > 3 * self->slot_count && calls_grow(self) < 0) {
        return -1;
    }
    Entry *entry = slot_of(self, key, hash);
    if (entry->target == NULL) {
        if (keep_key(key) < 0) {
            return -1;
        }
        entry->key = *key;
        entry->hash = hash;
        self->used++;
    }
    for (int i = 0; i < 2; i++) {
        entry->side[i] = side[i];
        entry->shift[i] = shift[i];
    }
    entry->kind = 0;
    Py_XSETREF(entry->target, Py_NewRef(target));
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
                          &target, &side[IN], &shift[IN], &side[OUT], &shift[OUT])) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(arguments) != (Py_ssize_t)strlen(roles) || side[IN] >= SIDES
        || side[OUT] >= SIDES) {
        PyErr_SetString(PyExc_ValueError, "invalid arguments for this call");
        return NULL;
    }
    Key key;
    Arguments read;
    int readable = read_call(method, roles, &PyTuple_GET_ITEM(arguments, 0), &key, &read);
    int failed = readable && put_entry(self, &key, hash_of(&key), target, side, shift) < 0;
    release_arguments(&read);
    return failed ? NULL : PyBool_FromLong(readable);
}

static PyObject *calls_record(Calls *self, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "li", &self->recorded, &self->comm)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *calls_learn(Calls *self, PyObject *args)
{
    long method;
    const char *roles;
    PyObject *arguments;
    long long kind;
    if (!PyArg_ParseTuple(args, "lsO!L", &method, &roles, &PyTuple_Type, &arguments, &kind)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(arguments) == (Py_ssize_t)strlen(roles)) {
        Key key;
        Arguments read;
        if (read_call(method, roles, &PyTuple_GET_ITEM(arguments, 0), &key, &read)) {
            Entry *entry = slot_of(self, &key, hash_of(&key));
            entry->kind = entry->target != NULL ? kind : 0;
        }
        release_arguments(&read);
    }
    Py_RETURN_NONE;
}

static PyObject *calls_clear(Calls *self, PyObject *Py_UNUSED(none))
{
    calls_forget(self);
    Py_RETURN_NONE;
}

static Py_ssize_t calls_length(Calls *self)
{
    return (Py_ssize_t)self->used;
}

static PyObject *calls_guard(Calls *self, PyObject *call_guard)
{
    if (!Py_IS_TYPE(call_guard, &CallGuardType)) {
        return PyErr_Format(PyExc_TypeError, "expected a CallGuard");
    }
    Py_XSETREF(self->call_guard, (CallGuard *)Py_NewRef(call_guard));
    Py_RETURN_NONE;
}

static PyMethodDef calls_methods[] = {
    {"store", (PyCFunction)calls_store, METH_VARARGS,
     "Store the target of calls like this one; return whether they have a key."},
    {"store_any_size", (PyCFunction)calls_store_any_size, METH_VARARGS,
     "Store the target of calls of this form in a range of sizes; return whether it was stored."},
    {"clear", (PyCFunction)calls_clear, METH_NOARGS, "Remove all calls."},
    {"guard", (PyCFunction)calls_guard, METH_O, "Set the lock of all calls."},
    {"record", (PyCFunction)calls_record, METH_VARARGS,
     "Record the calls of the first methods as events of a communicator."},
    {"learn", (PyCFunction)calls_learn, METH_VARARGS, "Set the kind of a stored call in events."},
    {NULL}};

static PySequenceMethods calls_as_sequence = {.sq_length = (lenfunc)calls_length};

PyTypeObject CallsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Calls",
    .tp_doc = "Cache of calls: their targets, by key.",
    .tp_basicsize = sizeof(Calls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_as_sequence = &calls_as_sequence,
    .tp_methods = calls_methods,
    .tp_new = calls_new,
    .tp_dealloc = (destructor)calls_dealloc,
    .tp_traverse = (traverseproc)calls_traverse,
    .tp_clear = (inquiry)calls_forget,
};

/* ---- Recognised ------------------------------------------------------------------------------ */

/* Put arguments in positional order; return 0 for missing or extra ones, which the Python method
 * rejects. */
static inline int arrange(const Recognised *self, PyObject *const *args, Py_ssize_t given,
                          PyObject *names, PyObject **places)
{
    if (given > self->count) {
        return 0;
    }
    Py_ssize_t i = 0;
    for (; i < given; i++) {
        places[i] = args[i];
    }
    Py_ssize_t first = self->count - PyTuple_GET_SIZE(self->defaults);
    for (; i < self->count; i++) {
        places[i] = i < first ? NULL : PyTuple_GET_ITEM(self->defaults, i - first);
    }
    for (Py_ssize_t named = 0; names != NULL && named < PyTuple_GET_SIZE(names); named++) {
        PyObject *name = PyTuple_GET_ITEM(names, named);
        for (i = given; i < self->count; i++) {
            if (PyTuple_GET_ITEM(self->names, i) == name) {
                break;
            }
        }
        if (i == self->count) {
            return 0;
        }
        places[i] = args[given + named];
    }
    for (i = given; i < self->count; i++) {
        if (places[i] == NULL) {
            return 0;
        }
    }
    return 1;
}

/* Run the target of a call, under the lock of the communicator. */
static inline PyObject *run_target(PyObject *target, const Entry *entry, const Arguments *arguments,
                                   PyObject *const *args, size_t flags, PyObject *names)
{
    int begins = Py_IS_TYPE(target, &BeginType);
    if (!begins && !Py_IS_TYPE(target, &CompiledPlanType)) {
        return PyObject_Vectorcall(target, args, flags, names);
    }
    char *bases[2];
    for (int i = 0; i < 2; i++) {
        bases[i] =
            entry->side[i] < 0 ? NULL : arguments->memory[entry->side[i]].data + entry->shift[i];
    }
    if (begins) {
        PyObject *kept = keep_memory(arguments), *request = NULL;
        if (kept != NULL) {
            request = begin_call(target, bases[IN], bases[OUT], kept);
        }
        Py_XDECREF(kept);
        return request;
    }
    /* The caller keeps the arguments alive until this returns; after an error MPI may need them
     * longer. */
    CompiledPlan *plan = (CompiledPlan *)target;
    PyObject *kept = plan->remote ? keep_memory(arguments) : NULL;
    int failed = plan->remote && kept == NULL ? -1 : play(plan, bases[IN], bases[OUT], kept);
    Py_XDECREF(kept);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* Return the target of a call for its size; NULL if Python has to run it, or for an error. Inside
 * the lock: another call must not change the operands of a running compiled plan. */
static PyObject *sized_target(Calls *calls, AnySize *any_size, Key *key, uint64_t hash,
                              Entry *entry)
{
    static const long long none[2] = {0, 0};
    PyObject *target = target_for(any_size, key);
    if (target == NULL) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        entry->side[i] = sides_of(any_size)[i];
        entry->shift[i] = 0;
    }
    if (!repeats(any_size, hash)) {
        return Py_NewRef(target);
    }
    target = copy_of(target);
    if (target != NULL && put_entry(calls, key, hash, target, entry->side, none) < 0) {
        Py_CLEAR(target);
    }
    return target;
}

static PyObject *recognised_call(Recognised *self, PyObject *const *args, size_t flags,
                                 PyObject *names)
{
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *places[MOST_ARGUMENTS];
    Key key;
    Arguments arguments;
    if (given < 1) {
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    PyObject *calls = PyObject_GetAttr(args[0], calls_name);
    if (calls == NULL) {
        PyErr_Clear();
    }
    if (calls == NULL || !Py_IS_TYPE(calls, &CallsType) || !((Calls *)calls)->used
        || !arrange(self, args + 1, given - 1, names, places)) {
        Py_XDECREF(calls);
        return PyObject_Vectorcall(self->slow, args, flags, names);
    }
    PyObject *target = NULL, *result = NULL;
    AnySize *any_size = NULL;
    CallGuard *call_guard = NULL;
    int slow = 1, comm = self->method < ((Calls *)calls)->recorded ? ((Calls *)calls)->comm : -1;
    int64_t start = comm >= 0 ? nanoseconds() : 0, kind = 0;
    if (read_call(self->method, self->roles, places, &key, &arguments)) {
        uint64_t hash = hash_of(&key);
        Entry entry = *slot_of((Calls *)calls, &key, hash);
        target = Py_XNewRef(entry.target);
        if (target == NULL) {
            any_size = (AnySize *)Py_XNewRef(any_size_of((Calls *)calls, &key));
        }
        call_guard = (CallGuard *)Py_XNewRef(((Calls *)calls)->call_guard);
        /* A call inside another one is a part of that one. */
        kind = comm >= 0 && !(call_guard != NULL && call_guard->outer_thread) ? entry.kind : -1;
        if (kind && (target != NULL || any_size != NULL)) {
            slow = 0;
            if (call_guard == NULL || acquire(call_guard) == 0) {
                if (any_size != NULL) {
                    target = sized_target((Calls *)calls, any_size, &key, hash, &entry);
                }
                if (target != NULL) {
                    result = run_target(target, &entry, &arguments, args, flags, names);
                }
                if (call_guard != NULL) {
                    call_guard->owner_thread = 0;
                }
                slow = target == NULL && !PyErr_Occurred();
            }
        }
    }
    release_arguments(&arguments);
    if (slow) {
        result = PyObject_Vectorcall(self->slow, args, flags, names);
    }
    else if (kind > 0 && result != NULL) {
        add_call(comm, kind, start, nanoseconds(), 1);
    }
    Py_DECREF(calls);
    Py_XDECREF(any_size);
    Py_XDECREF(call_guard);
    Py_XDECREF(target);
    return result;
}

static PyObject *recognised_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long method;
    const char *roles;
    PyObject *slow, *names, *defaults;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OlsO!O!", &slow, &method, &roles, &PyTuple_Type, &names,
                          &PyTuple_Type, &defaults)) {
        return NULL;
    }
    Py_ssize_t count = (Py_ssize_t)strlen(roles);
    if (count > MOST_ARGUMENTS || PyTuple_GET_SIZE(names) != count
        || PyTuple_GET_SIZE(defaults) > count) {
        PyErr_SetString(PyExc_ValueError, "roles, names and defaults differ in length");
        return NULL;
    }
    Recognised *self = (Recognised *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = (vectorcallfunc)recognised_call;
    self->slow = Py_NewRef(slow);
    self->names = Py_NewRef(names);
    self->defaults = Py_NewRef(defaults);
    self->method = method;
    self->count = count;
    memcpy(self->roles, roles, count + 1);
    return (PyObject *)self;
}

/* Create a method that replaces one of a class. */
PyObject *new_method(PyObject *slow, vectorcallfunc call)
{
    Recognised *self = (Recognised *)RecognisedType.tp_alloc(&RecognisedType, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call;
    self->slow = Py_NewRef(slow);
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

static PyGetSetDef recognised_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};

PyTypeObject RecognisedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.runtime.execution._executor.Recognised",
    .tp_doc = NULL,
    .tp_basicsize = sizeof(Recognised),
    .tp_vectorcall_offset = offsetof(Recognised, vectorcall),
    .tp_dictoffset = offsetof(Recognised, attributes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = bind_method,
    .tp_getset = recognised_attributes,
    .tp_new = recognised_new,
    .tp_dealloc = (destructor)recognised_dealloc,
    .tp_traverse = (traverseproc)recognised_traverse,
};

int prepare_recognition(void)
{
    calls_name = PyUnicode_InternFromString("_calls");
    return calls_name == NULL ? -1 : 0;
}
