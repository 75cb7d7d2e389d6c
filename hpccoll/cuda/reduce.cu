// Reduction of up to eight operands in one pass: into = a0 op a1 op ... on ELEMENT, by OPERATOR.
//
// Both are macros of the compilation, and so is the EXPRESSION of the operator "user". NVRTC or hipRTC
// compile this for a device, a C++ compiler for tests (tests/support/gpu/cuda_on_host.py), so it uses
// only features that all of them have.
// Results are bitwise equal to NumPy's on the host: products and sums are not fused (the options
// disable that too), 16-bit floats are computed in float and rounded once, and MAX and MIN of equal
// numbers return the second one. Only the payload of a NaN may differ.

typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef int int32;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;
typedef float float32;
typedef double float64;

struct float16 { uint16 bits; };
struct bfloat16 { uint16 bits; };
struct complex64 { float real, imag; };
struct complex128 { double real, imag; };
struct float_int { float value; int32 place; };
struct int_int { int32 value, place; };

// ---- numbers --------------------------------------------------------------------------------------

template <class T> __device__ inline T added(T a, T b) { return a + b; }
template <class T> __device__ inline T subtracted(T a, T b) { return a - b; }
template <class T> __device__ inline T multiplied(T a, T b) { return a * b; }
template <class T> __device__ inline bool less(T a, T b) { return a < b; }
template <class T> __device__ inline bool same(T a, T b) { return a == b; }

#ifdef __CUDA_ARCH__
// CuPy makes NVRTC flush numbers below 2^-126 to zero, with any options. These functions do not.
#define ARITHMETIC(name, instruction)                                                             \
    template <> __device__ inline float name(float a, float b)                                    \
    {                                                                                             \
        float found;                                                                              \
        asm(instruction ".rn.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));                    \
        return found;                                                                             \
    }
ARITHMETIC(added, "add")
ARITHMETIC(subtracted, "sub")
ARITHMETIC(multiplied, "mul")

#define COMPARISON(name, relation)                                                                \
    template <> __device__ inline bool name(float a, float b)                                     \
    {                                                                                             \
        int found;                                                                                \
        asm("{ .reg .pred p; setp." relation ".f32 p, %1, %2; selp.s32 %0, 1, 0, p; }"            \
            : "=r"(found) : "f"(a), "f"(b));                                                      \
        return found;                                                                             \
    }
COMPARISON(less, "lt")
COMPARISON(same, "eq")
#endif

// ---- arithmetic type of an element ----------------------------------------------------------------

union Digits { float number; uint32 bits; };

__device__ inline float number_of(uint32 bits)
{
    Digits digits;
    digits.bits = bits;
    return digits.number;
}

__device__ inline uint32 bits_of(float number)
{
    Digits digits;
    digits.number = number;
    return digits.bits;
}

template <class T> struct Computed {
    typedef T type;
    __device__ static T widen(T element) { return element; }
    __device__ static T narrow(T number) { return number; }
};

template <> struct Computed<float16> {
    typedef float type;
    __device__ static float widen(float16 element)
    {
        uint32 sign = (uint32)(element.bits & 0x8000) << 16, bits = (element.bits & 0x7fffu) << 13;
        if (bits >= 0x7c00u << 13)
            bits |= 0xffu << 23;                  // infinity or NaN: all ones stay all ones
        else if (bits >= 0x0400u << 13)
            bits += (127u - 15u) << 23;
        else                                      // subnormal: 2^-14 added, and taken away
            bits = bits_of(subtracted(number_of(bits + (113u << 23)), number_of(113u << 23)));
        return number_of(sign | bits);
    }
    __device__ static float16 narrow(float number)
    {
        uint32 bits = bits_of(number), sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        if (bits > 0xffu << 23)
            bits = 0x7e00 | (bits >> 13 & 0x3ff);
        else if (bits >= 0x477ff000u)             // 65520 and more become infinity
            bits = 0x7c00;
        else if (bits < 113u << 23)               // 0.5's last digit is the smallest number
            bits = bits_of(added(number_of(bits), 0.5f)) - bits_of(0.5f);
        else
            bits = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
        float16 element = {(uint16)(sign | bits)};
        return element;
    }
};

template <> struct Computed<bfloat16> {
    typedef float type;
    __device__ static float widen(bfloat16 element) { return number_of((uint32)element.bits << 16); }
    __device__ static bfloat16 narrow(float number)
    {
        uint32 bits = bits_of(number);
        uint32 even = bits + 0x7fff + (bits >> 16 & 1), nan = (bits >> 31 << 31) | 0x7fc00000;
        bfloat16 element = {(uint16)(((bits & 0x7fffffff) > 0x7f800000 ? nan : even) >> 16)};
        return element;
    }
};

// ---- operators ------------------------------------------------------------------------------------

// Integers wrap around: 64 bits hold all digits of every type.
template <class T> __device__ inline T op_sum(T a, T b) { return (T)((uint64)a + (uint64)b); }
template <class T> __device__ inline T op_prod(T a, T b) { return (T)((uint64)a * (uint64)b); }
template <> __device__ inline float op_sum(float a, float b) { return added(a, b); }
template <> __device__ inline float op_prod(float a, float b) { return multiplied(a, b); }
template <> __device__ inline double op_sum(double a, double b) { return a + b; }
template <> __device__ inline double op_prod(double a, double b) { return a * b; }

#define COMPLEX(T)                                                                                \
    template <> __device__ inline T op_sum(T a, T b)                                              \
    {                                                                                             \
        T sum = {added(a.real, b.real), added(a.imag, b.imag)};                                   \
        return sum;                                                                               \
    }                                                                                             \
    template <> __device__ inline T op_prod(T a, T b)                                             \
    {                                                                                             \
        T product = {subtracted(multiplied(a.real, b.real), multiplied(a.imag, b.imag)),          \
                     added(multiplied(a.real, b.imag), multiplied(a.imag, b.real))};              \
        return product;                                                                           \
    }
COMPLEX(complex64)
COMPLEX(complex128)

template <class T> __device__ inline bool is_nan(T a) { return !same(a, a); }
template <class T> __device__ inline T op_max(T a, T b) { return less(b, a) || is_nan(a) ? a : b; }
template <class T> __device__ inline T op_min(T a, T b) { return less(a, b) || is_nan(a) ? a : b; }
template <class T> __device__ inline T op_land(T a, T b) { return (T)(a && b); }
template <class T> __device__ inline T op_lor(T a, T b) { return (T)(a || b); }
template <class T> __device__ inline T op_lxor(T a, T b) { return (T)(!a != !b); }
template <class T> __device__ inline T op_band(T a, T b) { return (T)(a & b); }
template <class T> __device__ inline T op_bor(T a, T b) { return (T)(a | b); }
template <class T> __device__ inline T op_bxor(T a, T b) { return (T)(a ^ b); }

// Pairs with equal values get the smaller index.
template <class T> __device__ inline T either(T a, T b, bool first)
{
    T found = first ? a : b;
    if (same(a.value, b.value))
        found.place = a.place < b.place ? a.place : b.place;
    return found;
}
template <class T> __device__ inline T op_maxloc(T a, T b)
{
    return either(a, b, less(b.value, a.value));
}
template <class T> __device__ inline T op_minloc(T a, T b)
{
    return either(a, b, less(a.value, b.value));
}

#define GLUED(a, b) a##b
#define NAMED(a, b) GLUED(a, b)
#define COMBINE NAMED(op_, OPERATOR)

// ---- one pass -------------------------------------------------------------------------------------

enum { MOST = 8, QUAD = 16, TOGETHER = QUAD / sizeof(ELEMENT) };

typedef Computed<ELEMENT> Form;
typedef Form::type Number;

#ifdef EXPRESSION
// User operator, in a and b: its result is converted to an element after each step, as on the host.
__device__ inline Number op_user(Number a, Number b) { return Form::widen(Form::narrow(EXPRESSION)); }
#endif

struct alignas(QUAD) Quad { uint32 words[4]; };
union Pack { Quad quad; ELEMENT elements[TOGETHER]; };

// Reads sixteen bytes at a time if all arrays have the same alignment, else single elements.
// The first and last elements are always read singly.
// `swapped`: bit j is set if operand j is the left operand of its operation.
// `wide`: bit j is set if operand j is a Number, not an ELEMENT.
// `held` gets the unrounded result, `into` the rounded one; either may be null.
extern "C" __global__ void reduce(ELEMENT *into, Number *held, long long count, int operands,
                                  uint32 swapped, uint32 wide, const void *a0, const void *a1,
                                  const void *a2, const void *a3, const void *a4, const void *a5,
                                  const void *a6, const void *a7)
{
    const void *const all[MOST] = {a0, a1, a2, a3, a4, a5, a6, a7};
    long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    long long threads = gridDim.x * (long long)blockDim.x;

    uint64 place = 0;
    bool known = into != 0, alike = true;
    if (known)
        place = (uint64)into % QUAD;
#pragma unroll
    for (int j = 0; j < MOST; j++)
        if (j < operands && !(wide >> j & 1)) {
            if (!known)
                place = (uint64)all[j] % QUAD;
            alike = alike && place == (uint64)all[j] % QUAD;
            known = true;
        }
    long long head = (long long)((QUAD - place) % QUAD / sizeof(ELEMENT));
    // Arrays whose elements cross the borders of packs are read singly, too.
    if (!alike || place % sizeof(ELEMENT) || head > count)
        head = count;
    long long packs = (count - head) / TOGETHER, tail = head + packs * TOGETHER;

    for (long long pack = thread; pack < packs; pack += threads) {
        long long start = head + pack * TOGETHER;
        Number sum[TOGETHER];
#pragma unroll
        for (int j = 0; j < MOST; j++)
            if (j < operands) {
                Pack read;
                bool numbers = wide >> j & 1;
                if (!numbers)
                    read.quad = *(const Quad *)((const ELEMENT *)all[j] + start);
#pragma unroll
                for (int e = 0; e < TOGETHER; e++) {
                    Number next = numbers ? ((const Number *)all[j])[start + e]
                                          : Form::widen(read.elements[e]);
                    sum[e] = j == 0 ? next : swapped >> j & 1 ? COMBINE(next, sum[e])
                                                              : COMBINE(sum[e], next);
                }
            }
        if (held)
#pragma unroll
            for (int e = 0; e < TOGETHER; e++)
                held[start + e] = sum[e];
        if (into) {
            Pack written;
#pragma unroll
            for (int e = 0; e < TOGETHER; e++)
                written.elements[e] = Form::narrow(sum[e]);
            *(Quad *)(into + start) = written.quad;
        }
    }

    for (long long rest = thread; rest < head + count - tail; rest += threads) {
        long long i = rest < head ? rest : rest - head + tail;
        Number sum;
#pragma unroll
        for (int j = 0; j < MOST; j++)
            if (j < operands) {
                Number next = wide >> j & 1 ? ((const Number *)all[j])[i]
                                            : Form::widen(((const ELEMENT *)all[j])[i]);
                sum = j == 0 ? next : swapped >> j & 1 ? COMBINE(next, sum) : COMBINE(sum, next);
            }
        if (held)
            held[i] = sum;
        if (into)
            into[i] = Form::narrow(sum);
    }
}
