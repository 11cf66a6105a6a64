// Sixteen-lane vectors in the compiler's own vector extension, so that one source serves every instruction set.
//
// Every operation is elementwise with a fixed rounding, and sums over lanes use one fixed tree: the result of a row
// never depends on how many rows are computed together. Files that include this must be compiled with
// -ffp-contract=off; fused multiply-adds are written out.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// The compiler takes vectors wider than the machine's through memory: where these are of eight lanes, what is hot is
// written with them by hand.
#if defined(__AVX2__) && !defined(__AVX512F__)
#define CG_EIGHT_LANES 1
#else
#define CG_EIGHT_LANES 0
#endif

namespace {

typedef float f16v __attribute__((vector_size(64)));
typedef int32_t i16v __attribute__((vector_size(64)));
typedef uint32_t u16v __attribute__((vector_size(64)));
typedef int8_t b16v __attribute__((vector_size(16)));
typedef uint16_t h16v __attribute__((vector_size(32)));

#define CG_METHOD inline __attribute__((always_inline))
#define CG_INLINE static CG_METHOD

template <class V>
CG_INLINE V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof(V));
    return v;
}

template <class V>
CG_INLINE void store(void* p, V v) {
    std::memcpy(p, &v, sizeof(V));
}

CG_INLINE f16v splat(float x) { return f16v{} + x; }
CG_INLINE u16v splat_bits(uint32_t x) { return u16v{} + x; }

// a * b + c, rounded once where the machine can, else twice: one choice per instruction set.
CG_INLINE f16v fma16(f16v a, f16v b, f16v c) {
#if defined(__AVX512F__)
    return (f16v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    f16v r;
    __m256 x[2], y[2], z[2];
    std::memcpy(x, &a, 64);
    std::memcpy(y, &b, 64);
    std::memcpy(z, &c, 64);
    z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]);
    z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
    std::memcpy(&r, z, 64);
    return r;
#else
    return a * b + c;
#endif
}

// acc + a.lo * b.lo + a.hi * b.hi on pairs of bfloat16.
CG_INLINE f16v dot_bf16(f16v acc, u16v a, u16v b) {
#if defined(__AVX512BF16__)
    return (f16v)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    const u16v high = splat_bits(0xffff0000u);
    acc = fma16((f16v)(a << 16), (f16v)(b << 16), acc);
    return fma16((f16v)(a & high), (f16v)(b & high), acc);
#endif
}

// The larger of two; b where one is NaN.
CG_INLINE f16v max16(f16v a, f16v b) {
#if defined(__AVX512F__)
    return (f16v)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

// Halves added until one lane is left: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
CG_INLINE float sum_lanes(f16v v) {
#if defined(__AVX512F__)
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
#else
    float x[16];
    store(x, v);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) x[i] += x[i + width];
    return x[0];
#endif
}

CG_INLINE float max_lanes(f16v v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float x[16];
    store(x, v);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
#endif
}

// 2^f for |f| <= 1/2: the polynomial whose largest relative error is least. DEGREE 5: below 2e-7, 4: below 3e-6, a
// thousandth of what bfloat16 leaves out.
constexpr float EXP2_5[] = {1.32647272e-3f, 9.67151264e-3f, 5.55073374e-2f, 2.40222421e-1f, 6.93146978e-1f};  // f^5 .. f

template <int DEGREE>
CG_INLINE f16v exp2_fraction(f16v f) {
    static_assert(DEGREE == 4 || DEGREE == 5, "fitted for these");
    f16v p;
    if (DEGREE == 5) {
        p = fma16(splat(EXP2_5[0]), f, splat(EXP2_5[1]));
        p = fma16(p, f, splat(EXP2_5[2]));
        p = fma16(p, f, splat(EXP2_5[3]));
        p = fma16(p, f, splat(EXP2_5[4]));
    } else {
        p = fma16(splat(9.58285310e-3f), f, splat(5.59064246e-2f));
        p = fma16(p, f, splat(2.40240986e-1f));
        p = fma16(p, f, splat(6.93124193e-1f));
    }
    return fma16(p, f, splat(1.0f));
}

#if CG_EIGHT_LANES
CG_INLINE __m256 exp2_8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(12582912.0f), low = _mm256_set1_ps(-126.0f);
    const __m256 clamped = _mm256_max_ps(x, low), shifted = _mm256_add_ps(clamped, magic);
    const __m256 f = _mm256_sub_ps(clamped, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(EXP2_5[0]);
#pragma GCC unroll 4
    for (int i = 1; i < 5; ++i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2_5[i]));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    const __m256 r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    // 0 below -126; a NaN, which the maximum loses, comes back.
    return _mm256_blendv_ps(_mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), r), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
#endif

// 2^x for x <= 126; 0 (or a denormal) below 2^-126, NaN for NaN.
template <int DEGREE = 5>
CG_INLINE f16v exp2_16(f16v x) {
#if defined(__AVX512F__)
    const __m512 n = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (f16v)_mm512_scalef_ps((__m512)exp2_fraction<DEGREE>(x - (f16v)n), n);
#elif CG_EIGHT_LANES
    static_assert(DEGREE == 5, "float32");
    __m256 v[2];
    std::memcpy(v, &x, 64);
    v[0] = exp2_8(v[0]);
    v[1] = exp2_8(v[1]);
    return load<f16v>(v);
#else
    const f16v magic = splat(12582912.0f), low = splat(-126.0f);
    const i16v small = x < low;
    const f16v clamped = small ? low : x;
    const f16v shifted = clamped + magic;
    const u16v n = (u16v)shifted - (u16v)magic;
    const f16v r = (f16v)((u16v)exp2_fraction<DEGREE>(clamped - (shifted - magic)) + (n << 23));
    return small ? splat(0.0f) : x == x ? r : x;  // a NaN's own bits would be shifted
#endif
}

// Bits of the nearest bfloat16 (ties to even), still in the high half. A NaN stays one: rounded, the bits of some would
// run over into those of a number.
CG_INLINE u16v round_bf16(f16v x) {
    const u16v bits = (u16v)x;
    return (x == x ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u) & 0xffff0000u;
}

// The nearest bfloat16 of sixteen finite floats; the machine's own instruction takes denormals for zero.
CG_INLINE void put_bf16(uint16_t* out, f16v x) {
#if defined(__AVX512BF16__)
    const __m256bh r = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(out, &r, 32);
#else
    store(out, __builtin_convertvector(round_bf16(x) >> 16, h16v));
#endif
}

CG_INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return uint16_t((x == x ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u) >> 16);
}

CG_INLINE uint32_t float_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

}  // namespace
