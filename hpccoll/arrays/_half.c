/* Kernels for 16-bit floats: widened to float32, computed by NumPy's loop, rounded once.

   The bits are those of hpccoll/arrays/half.py, which does the same where this was not built; only
   the digits of a NaN may differ. Operands are processed in blocks that stay in the first cache, so
   that three passes cost little more than one. A kernel may be called without the GIL: it is never
   written to, and NumPy's loops for float32 need no interpreter. */
#include "_half.h"

#include <string.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define X86
#include <immintrin.h>
#endif

/* Elements of a block; elements from which the GIL is released. */
enum { BLOCK = 2048, LONG = 1 << 14 };

/* ---- conversions, a number at a time --------------------------------------------------------- */

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float wide_bfloat16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

static inline uint16_t narrow_bfloat16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t even = bits + 0x7fff + (bits >> 16 & 1);
    uint32_t nan = (bits >> 31 << 31) | 0x7fc00000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? nan : even) >> 16);
}

static inline float wide_float16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, digits = (uint32_t)(half & 0x7fff) << 13;
    uint32_t bits;
    if (digits >= 0x7c00u << 13) {
        bits = digits | 0xffu << 23; /* infinity or NaN: all ones stay all ones */
    }
    else if (digits >= 0x0400u << 13) {
        bits = digits + ((127u - 15u) << 23);
    }
    else { /* subnormal: 2^-14 added, and taken away */
        bits = bits_of(float_of(digits + (113u << 23)) - float_of(113u << 23));
    }
    return float_of(sign | bits);
}

static inline uint16_t narrow_float16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0xffu << 23) {
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    }
    if (bits >= 0x477ff000u) { /* 65520 and more become infinity */
        return (uint16_t)(sign | 0x7c00);
    }
    if (bits < 113u << 23) { /* 0.5's last digit is the smallest number */
        return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - bits_of(0.5f)));
    }
    return (uint16_t)(sign | (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}

/* ---- conversions of arrays ------------------------------------------------------------------- */

/* 16-bit numbers may lie at odd addresses: NumPy's arrays need not be aligned. */
#define WIDEN(name, one, attributes)                                                               \
    attributes static void name(const char *from, float *into, int64_t count)                      \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            uint16_t half;                                                                         \
            memcpy(&half, from + 2 * i, 2);                                                        \
            into[i] = one(half);                                                                   \
        }                                                                                          \
    }
#define NARROW(name, one, attributes)                                                              \
    attributes static void name(const float *from, char *into, int64_t count)                      \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            uint16_t half = one(from[i]);                                                          \
            memcpy(into + 2 * i, &half, 2);                                                        \
        }                                                                                          \
    }

#if defined(__aarch64__)
static inline float hardware_wide(uint16_t half)
{
    __fp16 value;
    memcpy(&value, &half, 2);
    return (float)value;
}

static inline uint16_t hardware_narrow(float value)
{
    __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
WIDEN(widen_float16, hardware_wide, )
NARROW(narrow_float16s, hardware_narrow, )
#else
WIDEN(widen_float16, wide_float16, )
NARROW(narrow_float16s, narrow_float16, )
#endif
WIDEN(widen_bfloat16, wide_bfloat16, )
NARROW(narrow_bfloat16s, narrow_bfloat16, )

#ifdef X86
/* Every processor with AVX2 has the instructions for float16. */
#define FAST __attribute__((target("avx2,f16c")))

WIDEN(widen_bfloat16_fast, wide_bfloat16, FAST)
NARROW(narrow_bfloat16_fast, narrow_bfloat16, FAST)

FAST static void widen_float16_fast(const char *from, float *into, int64_t count)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(into + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                       (const __m128i *)(const void *)(from + 2 * i))));
    }
    widen_float16(from + 2 * i, into + i, count - i);
}

FAST static void narrow_float16_fast(const float *from, char *into, int64_t count)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm_storeu_si128((__m128i *)(void *)(into + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    narrow_float16s(from + i, into + 2 * i, count - i);
}
#endif

/* ---- a kernel -------------------------------------------------------------------------------- */

static void apply(const HalfKernel *kernel, int form, int64_t count, const char *left,
                  const char *right, char *into, char *rounded)
{
    float one[BLOCK], two[BLOCK];
    int64_t left_size = form & LEFT_WIDE ? 4 : 2, right_size = form & RIGHT_WIDE ? 4 : 2;
    static const Py_ssize_t strides[3] = {4, 4, 4};
    for (int64_t start = 0; start < count; start += BLOCK) {
        Py_ssize_t length = count - start < BLOCK ? count - start : BLOCK;
        char *operands[3] = {(char *)left + start * left_size, (char *)right + start * right_size,
                             form & INTO_WIDE ? into + start * 4 : (char *)one};
        if (!(form & LEFT_WIDE)) {
            kernel->widen(operands[0], one, length);
            operands[0] = (char *)one;
        }
        if (!(form & RIGHT_WIDE)) {
            kernel->widen(operands[1], two, length);
            operands[1] = (char *)two;
        }
        kernel->loop(operands, &length, strides, kernel->data);
        if (!(form & INTO_WIDE)) {
            kernel->narrow(one, into + start * 2, length);
        }
        else if (form & ROUNDED) {
            kernel->narrow((const float *)(const void *)operands[2], rounded + start * 2, length);
        }
    }
}

/* Find NumPy's loop for float32; 0 if there is none. */
static int find_loop(PyObject *object, HalfKernel *kernel)
{
    PyUFuncObject *ufunc = (PyUFuncObject *)object;
    if (ufunc->nin != 2 || ufunc->nout != 1 || ufunc->functions == NULL) {
        return 0;
    }
    for (int i = 0; i < ufunc->ntypes; i++) {
        const char *types = ufunc->types + 3 * i;
        if (types[0] == NPY_FLOAT && types[1] == NPY_FLOAT && types[2] == NPY_FLOAT
            && ufunc->functions[i] != NULL) {
            kernel->loop = ufunc->functions[i];
            kernel->data = ufunc->data == NULL ? NULL : (void *)ufunc->data[i];
            return 1;
        }
    }
    return 0;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ufunc", "bfloat16", NULL};
    PyObject *ufunc;
    int bfloat16;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!p", names, &PyUFunc_Type, &ufunc,
                                     &bfloat16)) {
        return NULL;
    }
    HalfKernel *self = (HalfKernel *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!find_loop(ufunc, self)) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_TypeError, "this function has no loop for float32");
        return NULL;
    }
    self->apply = apply;
    self->widen = bfloat16 ? widen_bfloat16 : widen_float16;
    self->narrow = bfloat16 ? narrow_bfloat16s : narrow_float16s;
#ifdef X86
    if (__builtin_cpu_supports("avx2")) {
        self->widen = bfloat16 ? widen_bfloat16_fast : widen_float16_fast;
        self->narrow = bfloat16 ? narrow_bfloat16_fast : narrow_float16_fast;
    }
#endif
    return (PyObject *)self;
}

/* Check an operand; -1, or whether it is float32. */
static int read_operand(PyObject *object, npy_intp count, int writable)
{
    if (!PyArray_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected NumPy arrays");
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)object;
    npy_intp size = PyArray_ITEMSIZE(array);
    if ((size != 2 && size != 4) || PyArray_SIZE(array) != count || !PyArray_IS_C_CONTIGUOUS(array)
        || (size == 4 && !PyArray_ISALIGNED(array)) || (writable && !PyArray_ISWRITEABLE(array))) {
        PyErr_SetString(PyExc_ValueError, "expected contiguous arrays of the same "
                                          "length, of 16-bit or float32 numbers");
        return -1;
    }
    return size == 4;
}

/* kernel(left, right, into[, rounded]) */
static PyObject *kernel_call(HalfKernel *self, PyObject *args, PyObject *kwargs)
{
    PyObject *left, *right, *into, *rounded = NULL;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) && !PyArg_ValidateKeywordArguments(kwargs)) {
        return NULL;
    }
    static char *names[] = {"left", "right", "into", "rounded", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O", names, &left, &right, &into,
                                     &rounded)) {
        return NULL;
    }
    if (rounded == Py_None) {
        rounded = NULL;
    }
    npy_intp count = PyArray_Check(into) ? PyArray_SIZE((PyArrayObject *)into) : 0;
    int one = read_operand(left, count, 0), two = one < 0 ? -1 : read_operand(right, count, 0);
    int three = two < 0 ? -1 : read_operand(into, count, 1);
    if (three < 0) {
        return NULL;
    }
    if (rounded != NULL && read_operand(rounded, count, 1) != 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "the rounded result has 16 bits");
        }
        return NULL;
    }
    int form = LEFT_WIDE * one | RIGHT_WIDE * two | INTO_WIDE * three | ROUNDED * (rounded != NULL);
    char *data = rounded != NULL ? PyArray_BYTES((PyArrayObject *)rounded) : NULL;
    const char *first = PyArray_BYTES((PyArrayObject *)left);
    const char *second = PyArray_BYTES((PyArrayObject *)right);
    char *target = PyArray_BYTES((PyArrayObject *)into);
    if (count < LONG) {
        apply(self, form, count, first, second, target, data);
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        apply(self, form, count, first, second, target, data);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hpccoll.arrays._half.Kernel",
    .tp_basicsize = sizeof(HalfKernel),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A kernel for float16 or bfloat16: ``kernel(left, right, into[, rounded])``.",
    .tp_new = kernel_new,
    .tp_call = (ternaryfunc)kernel_call,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_half",
    .m_doc = "Kernels for 16-bit floats.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__half(void)
{
    import_array();
    import_umath();
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyType_Ready(&KernelType) < 0
        || PyModule_AddObjectRef(made, "Kernel", (PyObject *)&KernelType) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
