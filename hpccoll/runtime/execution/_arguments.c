/* Arguments of calls: memory of NumPy arrays and of all other objects that export buffers, buffer
 * specifications of mpi4py, and counts as any sequence or buffer of integers.
 *
 * A call that cannot be read here is read by Python (hpccoll/calls), which raises the errors.
 */
#include "_arguments.h"

static PyObject *in_place;
/* Element types by the characters of the buffer protocol; complex ones follow a Z. */
static PyArray_Descr *elements[128], *complex_elements[128];

/* Return the element type of a buffer; NULL if it is none of NumPy's numbers. */
static inline PyArray_Descr *element_of(const char *format)
{
    if (format == NULL) {
        return elements['B'];
    }
    PyArray_Descr *const *table = elements;
    if (format[0] == 'Z') {
        table = complex_elements;
        format++;
    }
    return format[0] > 0 && !format[1] ? table[(int)format[0]] : NULL;
}

/* Read the memory of an object; return 0 if it is not contiguous, aligned or writable as needed. */
static inline int read_memory(PyObject *object, int writable, Side *side, Memory *memory)
{
    side->form = MEMORY;
    if (Py_IS_TYPE(object, &PyArray_Type)) {
        PyArrayObject *array = (PyArrayObject *)object;
        if (!PyArray_CHKFLAGS(array, writable ? NPY_ARRAY_CARRAY
                                              : NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) {
            return 0;
        }
        side->nbytes = PyArray_NBYTES(array);
        side->dtype = PyArray_DESCR(array);
        memory->data = PyArray_BYTES(array);
        memory->object = object;
        return 1;
    }
    if (!PyObject_CheckBuffer(object)) {
        return 0;
    }
    if (PyObject_GetBuffer(object, &memory->view,
                           PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))
        < 0) {
        PyErr_Clear();
        memory->view.obj = NULL;
        return 0;
    }
    memory->data = memory->view.buf;
    memory->object = object;
    side->nbytes = memory->view.len;
    side->dtype = element_of(memory->view.format);
    return side->dtype != NULL
           && !((uintptr_t)memory->data & (uintptr_t)(PyDataType_ALIGNMENT(side->dtype) - 1));
}

/* Return room for the values of a vector; NULL without memory. */
static int64_t *room_for(Arguments *arguments, Py_ssize_t count)
{
    if (count <= FEW_VALUES - arguments->used) {
        int64_t *values = arguments->values + arguments->used;
        arguments->used += count;
        return values;
    }
    int64_t *values = PyMem_Malloc(count * sizeof(int64_t));
    if (values != NULL) {
        arguments->allocated[arguments->allocations++] = values;
    }
    return values;
}

/* Convert an integer; return 0 if it is none. */
static inline int read_integer(PyObject *object, int64_t *value)
{
    int overflow;
    if (PyLong_CheckExact(object)) {
        *value = PyLong_AsLongLongAndOverflow(object, &overflow);
        return 1;
    }
    /* Every array has __index__; a number's is that of NumPy's integers. */
    PyObject *number =
        PyIndex_Check(object) && !PyArray_Check(object) ? PyNumber_Index(object) : NULL;
    if (number == NULL) {
        PyErr_Clear();
        return 0;
    }
    *value = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    return 1;
}

#define READ(type)                                                                                 \
    do {                                                                                           \
        type value;                                                                                \
        for (Py_ssize_t i = 0; i < count; i++, at += stride) {                                     \
            memcpy(&value, at, sizeof value);                                                      \
            values[i] = (int64_t)value;                                                            \
        }                                                                                          \
    } while (0)

/* Read integers of a type and stride; return 0 for a type that has none. */
static int read_integers(const char *at, char type, Py_ssize_t count, Py_ssize_t stride,
                         int64_t *values)
{
    switch (type) {
    case 'b': READ(signed char); break;
    case 'B': READ(unsigned char); break;
    case 'h': READ(short); break;
    case 'H': READ(unsigned short); break;
    case 'i': READ(int); break;
    case 'I': READ(unsigned int); break;
    case 'l': READ(long); break;
    case 'L': READ(unsigned long); break;
    case 'q': READ(long long); break;
    case 'Q': READ(unsigned long long); break;
    default: return 0;
    }
    return 1;
}

static int read_memory_vector(PyObject *object, Vector *vector, Arguments *arguments)
{
    Py_buffer view = {.obj = NULL};
    const char *at;
    char type;
    Py_ssize_t count, stride;
    int read = 0;
    if (Py_IS_TYPE(object, &PyArray_Type)) { /* its buffer protocol takes 0.2 us */
        PyArrayObject *array = (PyArrayObject *)object;
        if (PyArray_NDIM(array) != 1 || !PyArray_ISNBO(PyArray_DESCR(array)->byteorder)) {
            return 0;
        }
        at = PyArray_BYTES(array);
        type = PyArray_DESCR(array)->type;
        count = PyArray_DIM(array, 0);
        stride = PyArray_STRIDE(array, 0);
    }
    else {
        if (PyObject_GetBuffer(object, &view, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) {
            PyErr_Clear();
            return 0;
        }
        if (view.ndim != 1 || (view.format != NULL && view.format[1])) {
            goto end;
        }
        at = view.buf;
        type = view.format == NULL ? 'B' : view.format[0];
        count = view.shape[0];
        stride = view.strides[0];
    }
    vector->length = count + 1;
    vector->values = room_for(arguments, count);
    read = vector->values != NULL && read_integers(at, type, count, stride, vector->values);
end:
    PyBuffer_Release(&view);
    return read;
}

/* Read counts or displacements; return 0 if they are no integers. */
static int read_vector(PyObject *object, Vector *vector, Arguments *arguments)
{
    if (object == Py_None) {
        return 1;
    }
    if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) {
        if (PyObject_CheckBuffer(object)) {
            return read_memory_vector(object, vector, arguments);
        }
        if (!PyRange_Check(object)) {
            return 0;
        }
        PyObject *list = PySequence_List(object);
        int read = list != NULL && read_vector(list, vector, arguments);
        Py_XDECREF(list);
        PyErr_Clear();
        return read;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    vector->length = count + 1;
    vector->values = room_for(arguments, count);
    if (vector->values == NULL) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_integer(PySequence_Fast_GET_ITEM(object, i), &vector->values[i])) {
            return 0;
        }
    }
    return 1;
}

/* Return 1 if an item of a specification is counts or displacements, and no type. */
static inline int holds_counts(PyObject *object)
{
    return PyLong_CheckExact(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object)
           || object == Py_None || PyObject_CheckBuffer(object) || PyIndex_Check(object)
           || PyRange_Check(object);
}

static inline int read_count(PyObject *object, Side *side)
{
    int64_t count;
    if (!read_integer(object, &count) || count < 0 || count == INT64_MAX) {
        return 0;
    }
    side->count = count + 1; /* no count differs from a count of 0 */
    return 1;
}

/* Parse the items after the buffer: nothing, a count, counts, a pair of a count and a displacement
 * or of counts and displacements, or counts and displacements, then an optional type. Return the
 * buffer; NULL for other forms. */
static inline PyObject *read_specification(PyObject *object, Side *side, Arguments *arguments)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    if (size < 1 || size > 4) {
        return NULL;
    }
    PyObject **items = PySequence_Fast_ITEMS(object), *last = items[size - 1];
    if (size > 1 && !holds_counts(last)) {
        side->type = last;
        size--;
    }
    if (size == 1) {
        return items[0];
    }
    PyObject *counts = items[1], *displs = size == 3 ? items[2] : Py_None;
    if (size == 2 && PyTuple_CheckExact(counts) && PyTuple_GET_SIZE(counts) == 2) {
        displs = PyTuple_GET_ITEM(counts, 1);
        counts = PyTuple_GET_ITEM(counts, 0);
    }
    if (size > 3) {
        return NULL;
    }
    if (!read_count(counts, side)) {
        return read_vector(counts, &side->counts, arguments)
                       && read_vector(displs, &side->displs, arguments)
                   ? items[0]
                   : NULL;
    }
    if (displs == Py_None) {
        return items[0];
    }
    side->displs.length = 2;
    side->displs.values = room_for(arguments, 1);
    return side->displs.values != NULL && read_integer(displs, side->displs.values) ? items[0]
                                                                                    : NULL;
}

static inline int read_side(PyObject *object, int writable, Side *side, Memory *memory,
                            Arguments *arguments)
{
    if (object == Py_None || object == in_place) {
        side->form = object == Py_None ? NOTHING : IN_ITS_PLACE;
        return 1;
    }
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        object = read_specification(object, side, arguments);
    }
    return object != NULL && read_memory(object, writable, side, memory);
}

/* Make the key of a call from the roles of its arguments: s, r and b are buffers (b for both
 * directions), o an operator, n a root, c counts. Return 0 for an unsupported call. The arguments
 * must be released in both cases. */
int read_call(long method, const char *roles, PyObject *const *objects, Key *key,
              Arguments *arguments)
{
    memset(key, 0, sizeof *key);
    key->method = method;
    arguments->used = arguments->allocations = 0;
    for (int i = 0; i < SIDES; i++) {
        arguments->memory[i].object = NULL;
        arguments->memory[i].view.obj = NULL;
    }
    Side *sides = key->sides;
    Memory *memory = arguments->memory;
    for (; *roles; roles++, objects++) {
        PyObject *object = *objects;
        int64_t root;
        switch (*roles) {
        case 's':
            if (!read_side(object, 0, &sides[SENT], &memory[SENT], arguments)) {
                return 0;
            }
            break;
        case 'r':
        case 'b':
            if (!read_side(object, 1, &sides[RECEIVED], &memory[RECEIVED], arguments)) {
                return 0;
            }
            break;
        case 'o': key->op = object; break;
        case 'n':
            if (!read_integer(object, &root) || root < 0) {
                return 0;
            }
            key->root = root;
            break;
        default:
            if (!read_vector(object, &key->counts, arguments)) {
                return 0;
            }
        }
    }
    /* Bytes may be read as larger elements, which a reduction needs aligned. */
    for (int i = 0; key->op != NULL && i < SIDES; i++) {
        if (sides[i].type != NULL && (uintptr_t)memory[i].data & (sizeof(long double) - 1)
            && PyDataType_ELSIZE(sides[i].dtype) < 8) {
            return 0;
        }
    }
    /* Buffers that overlap are an error, or a copy. */
    if (sides[SENT].form != MEMORY || sides[RECEIVED].form != MEMORY) {
        return 1;
    }
    const char *sent = memory[SENT].data, *received = memory[RECEIVED].data;
    return sent >= received + sides[RECEIVED].nbytes || received >= sent + sides[SENT].nbytes;
}

void release_arguments(Arguments *arguments)
{
    for (int i = 0; i < SIDES; i++) {
        if (arguments->memory[i].view.obj != NULL) {
            PyBuffer_Release(&arguments->memory[i].view);
        }
    }
    for (int i = 0; i < arguments->allocations; i++) {
        PyMem_Free(arguments->allocated[i]);
    }
    arguments->allocations = 0;
}

/* Return an object that keeps the memory of a call, also its exports; NULL on an error. */
PyObject *keep_memory(const Arguments *arguments)
{
    PyObject *kept[SIDES] = {NULL, NULL}, *both;
    for (int i = 0; i < SIDES; i++) {
        const Memory *memory = &arguments->memory[i];
        if (memory->object == NULL) {
            continue;
        }
        kept[i] = memory->view.obj == NULL ? Py_NewRef(memory->object)
                                           : PyMemoryView_FromObject(memory->object);
        if (kept[i] == NULL) {
            Py_XDECREF(kept[SENT]);
            return NULL;
        }
    }
    if (kept[SENT] == NULL || kept[RECEIVED] == NULL) {
        return kept[SENT] != NULL       ? kept[SENT]
               : kept[RECEIVED] != NULL ? kept[RECEIVED]
                                        : Py_NewRef(Py_None);
    }
    both = PyTuple_Pack(2, kept[SENT], kept[RECEIVED]);
    Py_DECREF(kept[SENT]);
    Py_DECREF(kept[RECEIVED]);
    return both;
}

/* Read size and type of an object's memory; return 0 if it exports none, or is one number. */
int read_buffer_kind(PyObject *object, uint64_t *nbytes, uint64_t *type)
{
    Py_buffer view;
    if (!PyObject_CheckBuffer(object)) {
        return 0;
    }
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) {
        PyErr_Clear();
        return 0;
    }
    PyArray_Descr *dtype = element_of(view.format);
    int is_number = !view.ndim;
    *nbytes = (uint64_t)view.len;
    *type = dtype != NULL ? (uint64_t)dtype->type_num : 0;
    PyBuffer_Release(&view);
    return !is_number;
}

PyObject *set_in_place(PyObject *module, PyObject *object)
{
    (void)module;
    Py_XSETREF(in_place, Py_NewRef(object));
    Py_RETURN_NONE;
}

int prepare_arguments(void)
{
    static const struct {
        char character;
        int type;
    } numbers[] = {{'?', NPY_BOOL},   {'b', NPY_BYTE},     {'B', NPY_UBYTE},     {'h', NPY_SHORT},
                   {'H', NPY_USHORT}, {'i', NPY_INT},      {'I', NPY_UINT},      {'l', NPY_LONG},
                   {'L', NPY_ULONG},  {'q', NPY_LONGLONG}, {'Q', NPY_ULONGLONG}, {'e', NPY_HALF},
                   {'f', NPY_FLOAT},  {'d', NPY_DOUBLE},   {'g', NPY_LONGDOUBLE}};
    static const struct {
        char character;
        int type;
    } pairs[] = {{'f', NPY_CFLOAT}, {'d', NPY_CDOUBLE}, {'g', NPY_CLONGDOUBLE}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        elements[(int)numbers[i].character] = PyArray_DescrFromType(numbers[i].type);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        complex_elements[(int)pairs[i].character] = PyArray_DescrFromType(pairs[i].type);
    }
    return PyErr_Occurred() ? -1 : 0;
}
