// Activations to int8: groups of 32 values with one power of two as their scale, sixteen groups at a time.
#pragma once

#include <cstddef>

#include "linear.h"
#include "vec.h"

namespace {

// Groups quantized by one call: v[i] goes to `stride` bytes behind v[i - 1].
constexpr int BATCH = 16;

constexpr float LARGEST_VALUE = 1e33f;    // beyond, cg_q8_group's base would be infinite: taken as not finite
constexpr float SMALLEST_VALUE = 1e-30f;  // below, 1 / scale would be: taken as zero

// Codes are round(x / scale) with the smallest power of two that keeps them within 127. A power of two costs up to one
// of the eight bits, and saves a multiplication in every group of every output: 2^e * dot is exact, and comes with the
// conversion of the int32 sum (see linear_impl.h).

CG_INLINE int32_t bits_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

#if defined(__AVX512F__)

// Lane i of the result: op over the lanes of v[i].
template <class Op>
CG_INLINE __m512i across(const __m512i (&v)[BATCH], Op op) {
    __m512i a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        a[i] = op(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        b[i] = op(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        c[i] = op(_mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0x88), _mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return op(_mm512_shuffle_i32x4(c[0], c[1], 0x88), _mm512_shuffle_i32x4(c[0], c[1], 0xdd));
}

// Sums of quarters: lane 4 j + i of the result is the sum of the four lanes that begin at 4 j of v[i].
CG_INLINE __m512i add_quarters(const __m512i* v) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

CG_INLINE void quantize_batch(char* out, size_t stride, const f16v (&v)[BATCH][2], int count) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i m[BATCH];
#pragma GCC unroll 16
    for (int i = 0; i < BATCH; ++i)  // as integers, NaN is larger than all
        m[i] = _mm512_max_epi32(_mm512_and_si512((__m512i)v[i][0], magnitude), _mm512_and_si512((__m512i)v[i][1], magnitude));
    const __m512i largest = across(m, [](__m512i x, __m512i y) { return _mm512_max_epi32(x, y); });
    const __mmask16 bad = _mm512_cmpgt_epi32_mask(largest, _mm512_set1_epi32(bits_of(LARGEST_VALUE)));
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(largest, _mm512_set1_epi32(bits_of(SMALLEST_VALUE)));
    const __m512i ratio = (__m512i)_mm512_mul_ps((__m512)largest, _mm512_set1_ps(1.0f / 127.0f));
    __m512i exponent = _mm512_and_si512(_mm512_add_epi32(ratio, _mm512_set1_epi32(0x7fffff)), _mm512_set1_epi32(0x7f800000));
    exponent = _mm512_mask_mov_epi32(exponent, tiny, _mm512_set1_epi32(bits_of(1.0f)));
    const __m512i inverse = _mm512_sub_epi32(_mm512_set1_epi32(254 << 23), exponent);
    float factor[BATCH];
    _mm512_storeu_si512(factor, _mm512_maskz_mov_epi32(_knot_mask16(_kor_mask16(bad, tiny)), inverse));

    __m512i sums[BATCH / 2];
#pragma GCC unroll 16
    for (int i = 0; i < BATCH; ++i) {
        const __m512 f = _mm512_set1_ps(factor[i]);
        const __m128i low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps((__m512)v[i][0], f)));
        const __m128i high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps((__m512)v[i][1], f)));
        __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        q = bad >> i & 1 ? _mm256_setzero_si256() : q;
        if (i < count) _mm256_storeu_si256((__m256i*)(out + size_t(i) * stride), q);
        if (i < 8) sums[i] = _mm512_castsi256_si512(q);
        else sums[i - 8] = _mm512_inserti64x4(sums[i - 8], q, 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), sums[i]);
    const __m512i s0 = add_quarters(sums), s1 = add_quarters(sums + 4);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const __m512i half0 = _mm512_sub_epi32(zero, _mm512_permutex2var_epi32(s0, order, s1));
    const __m512i half1 =
        _mm512_sub_epi32(zero, _mm512_permutex2var_epi32(s0, _mm512_add_epi32(order, _mm512_set1_epi32(4)), s1));
    const __m512i neg_sum = _mm512_add_epi32(half0, half1), nan = _mm512_set1_epi32(bits_of(__builtin_nanf("")));
    const __m512i base =
        _mm512_mask_mov_epi32((__m512i)_mm512_mul_ps((__m512)exponent, _mm512_set1_ps(12582912.0f)), bad, nan);
    const __m512i scale = _mm512_mask_mov_epi32(_mm512_maskz_mov_epi32(_knot_mask16(tiny), exponent), bad, nan);
    const __m512i field[8] = {
        scale,
        base,
        (__m512i)_mm512_mul_ps(_mm512_cvtepi32_ps(neg_sum), (__m512)_mm512_mask_mov_epi32(exponent, bad, nan)),
        _mm512_add_epi32(base, _mm512_slli_epi32(neg_sum, 3)),
        _mm512_add_epi32(base, _mm512_slli_epi32(neg_sum, 4)),
        _mm512_add_epi32(base, _mm512_slli_epi32(neg_sum, 7)),
        _mm512_add_epi32(base, _mm512_slli_epi32(half0, 5)),
        _mm512_add_epi32(base, _mm512_slli_epi32(half1, 5)),
    };
    // Fields of four groups each, group 4 j + i in lanes 4 j .. 4 j + 3 of t[i] (first four fields) and t[4 + i].
    __m512i t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(field[i], field[i + 1]), b = _mm512_unpackhi_epi32(field[i], field[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(field[i + 2], field[i + 3]), d = _mm512_unpackhi_epi32(field[i + 2], field[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    char rows[8][64];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm512_storeu_si512(rows[i], t[i]);
#pragma GCC unroll 16
    for (int i = 0; i < BATCH; ++i) {
        if (i >= count) break;
        char* to = out + size_t(i) * stride + offsetof(cg_q8_group, scale);
        _mm_storeu_si128((__m128i*)to, load<__m128i>(rows[i % 4] + 16 * (i / 4)));
        _mm_storeu_si128((__m128i*)(to + 16), load<__m128i>(rows[4 + i % 4] + 16 * (i / 4)));
    }
}

#else

CG_INLINE float float_of(int32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

#if defined(__AVX2__)

// The bits of the largest magnitude of 32 floats; as integers, NaN is larger than all.
CG_INLINE int32_t largest_of(const float* x) {
    __m256i m = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += 8) m = _mm256_max_epi32(m, _mm256_and_si256(load<__m256i>(x + i), _mm256_set1_epi32(0x7fffffff)));
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

// q = round(x * inverse), nearest, ties to even; less_half: minus the sums of its halves.
CG_INLINE void round_group(int8_t* q, const float* x, float inverse, int32_t (&less_half)[2]) {
    __m256i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(load<__m256>(x + 8 * i), _mm256_set1_ps(inverse)));
    // Packing works on the halves of registers: eight pieces of four bytes end up in the order 0 2 4 6 1 3 5 7.
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    store(q, bytes);
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(-1));
    for (int h = 0; h < 2; ++h) {
        __m128i a = h ? _mm256_extracti128_si256(sums, 1) : _mm256_castsi256_si128(sums);
        a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
        less_half[h] = _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
    }
}

#else

CG_INLINE int32_t largest_of(const float* x) {
    int32_t largest = 0;
    for (int i = 0; i < 32; ++i) {
        const int32_t magnitude = bits_of(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

CG_INLINE void round_group(int8_t* q, const float* x, float inverse, int32_t (&less_half)[2]) {
    less_half[0] = less_half[1] = 0;
    for (int i = 0; i < 32; ++i) {
        const int32_t code = bits_of(x[i] * inverse + 12582912.0f) - bits_of(12582912.0f);
        q[i] = int8_t(code);
        less_half[i / 16] -= code;
    }
}

#endif

void quantize_group(cg_q8_group* g, const float* x) {
    const int32_t largest = largest_of(x);
    if (largest > bits_of(LARGEST_VALUE)) {
        std::memset(g->q, 0, sizeof g->q);
        g->scale = g->base = g->neg_sum = __builtin_nanf("");
        g->start_8 = g->start_16 = g->start_128 = g->start_32[0] = g->start_32[1] = bits_of(g->base);
        return;
    }
    const bool tiny = largest < bits_of(SMALLEST_VALUE);
    const int32_t ratio = bits_of(float_of(largest) * (1.0f / 127.0f));
    const int32_t exponent = tiny ? bits_of(1.0f) : (ratio + 0x7fffff) & 0x7f800000;
    const float scale = float_of(exponent), inverse = tiny ? 0.0f : float_of((254 << 23) - exponent);
    int32_t half[2];
    round_group(g->q, x, inverse, half);
    const int32_t neg_sum = half[0] + half[1], base = bits_of(12582912.0f * scale);
    g->scale = tiny ? 0.0f : scale;
    g->base = float_of(base);
    g->neg_sum = float(neg_sum) * scale;
    g->start_8 = base + neg_sum * 8;
    g->start_16 = base + neg_sum * 16;
    g->start_128 = base + neg_sum * 128;
    g->start_32[0] = base + half[0] * 32;
    g->start_32[1] = base + half[1] * 32;
}

CG_INLINE void quantize_batch(char* out, size_t stride, const f16v (&v)[BATCH][2], int count) {
    for (int i = 0; i < count; ++i) {
        float x[32];
        std::memcpy(x, v[i], sizeof x);
        quantize_group(reinterpret_cast<cg_q8_group*>(out + size_t(i) * stride), x);
    }
}

#endif

}  // namespace
