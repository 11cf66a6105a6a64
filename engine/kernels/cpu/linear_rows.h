// How rows enter and leave the linear layers: quantization, bias and residual, silu(gate) * up. Elementwise or within
// one group of 32, so a row never sees its neighbours.
#pragma once

#include "linear.h"
#include "vec.h"

namespace {

using callgate::LANES;

// One value from memory in every lane. (vec.h's splat adds it to zero, which costs an instruction.)
CG_INLINE i16v splat_i(int32_t x) {
#if defined(__AVX512F__)
    return (i16v)_mm512_set1_epi32(x);
#else
    return i16v{} + x;
#endif
}

CG_INLINE f16v splat_f(float x) {
#if defined(__AVX512F__)
    return (f16v)_mm512_set1_ps(x);
#else
    return f16v{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}

CG_INLINE f16v to_float(i16v x) { return __builtin_convertvector(x, f16v); }

CG_INLINE float max_abs(f16v a, f16v b) {
    const u16v magnitude = splat_bits(0x7fffffffu);
    const f16v m = max16((f16v)((u16v)a & magnitude), (f16v)((u16v)b & magnitude));
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)m);
#else
    return max_lanes(m);
#endif
}

// -(sum of each half's 16 bytes, and of both), and the bytes themselves.
CG_INLINE void store_codes(cg_q8_group* g, i16v a, i16v b) {
#if defined(__AVX512F__)
    const __m128i low = _mm512_cvtepi32_epi8((__m512i)a), high = _mm512_cvtepi32_epi8((__m512i)b);
    const __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    _mm256_storeu_si256((__m256i*)g->q, q);
    __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    g->neg_sum_half[0] = -_mm256_extract_epi32(s, 0);
    g->neg_sum_half[1] = -_mm256_extract_epi32(s, 4);
#else
    int32_t x[32], s[2] = {0, 0};
    store(x, a);
    store(x + 16, b);
    for (int i = 0; i < 32; ++i) {
        g->q[i] = int8_t(x[i]);
        s[i / 16] -= x[i];
    }
    g->neg_sum_half[0] = s[0];
    g->neg_sum_half[1] = s[1];
#endif
    g->neg_sum = g->neg_sum_half[0] + g->neg_sum_half[1];
}

CG_INLINE bool any_nan(f16v a, f16v b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#else
    const i16v bad = (a != a) | (b != b);
    int32_t x[16], any = 0;
    store(x, bad);
    for (int i = 0; i < 16; ++i) any |= x[i];
    return any != 0;
#endif
}

CG_INLINE void quantize_group(cg_q8_group* g, f16v a, f16v b) {
    const float m = max_abs(a, b);
    if (any_nan(a, b) || !(m <= 3.4028235e38f)) {
        std::memset(g, 0, sizeof *g);
        g->scale = __builtin_nanf("");
        return;
    }
    const bool tiny = m < 1e-36f;  // 127 / m would overflow
    const float inverse = tiny ? 0.0f : 127.0f / m;
    const f16v magic = splat(12582912.0f);
    const i16v qa = (i16v)(a * splat(inverse) + magic) - (i16v)magic;
    const i16v qb = (i16v)(b * splat(inverse) + magic) - (i16v)magic;
    store_codes(g, qa, qb);
    g->scale = tiny ? 0.0f : m * (1.0f / 127.0f);
}

// Nearest bfloat16, ties to even; NaN stays NaN.
CG_INLINE void store_bf16(uint16_t* p, f16v v) {
    typedef uint16_t h16 __attribute__((vector_size(32)));
    u16v bits = round_bf16(v);
    bits = v != v ? splat_bits(0x7fc00000u) : bits;
    store(p, __builtin_convertvector(bits >> 16, h16));
}

// Outputs are written down a column of rows, a cache line here and there: ask for the lines this many rows ahead.
constexpr int WRITE_AHEAD = 8;

CG_INLINE char* row_of(const cg_rows* rows, int row) {
    return static_cast<char*>(rows->data) + size_t(row) * callgate::row_stride_bytes(rows->kind, rows->k);
}

// Group `at` (of 32 values) of one row, in whichever form the rows have.
CG_INLINE void put_group(const cg_rows* rows, int row, int at, f16v a, f16v b) {
    char* base = row_of(rows, row);
    if (rows->kind == CG_ROWS_Q8) {
        quantize_group(reinterpret_cast<cg_q8_group*>(base) + at, a, b);
    } else if (rows->kind == CG_ROWS_BF16) {
        store_bf16(reinterpret_cast<uint16_t*>(base) + at * 32, a);
        store_bf16(reinterpret_cast<uint16_t*>(base) + at * 32 + 16, b);
    } else {
        store(base + size_t(at) * 128, a);
        store(base + size_t(at) * 128 + 64, b);
    }
}

void set_row(const cg_rows* rows, int row, const float* x) {
    for (int g = 0; g < rows->k / 32; ++g) put_group(rows, row, g, load<f16v>(x + 32 * g), load<f16v>(x + 32 * g + 16));
}

void store_block(const float* acc, int rows, int lanes, const float* bias, float* y, int ldy, int flags) {
    for (int r = 0; r < rows; ++r) {
        f16v v[2] = {load<f16v>(acc + r * LANES), load<f16v>(acc + r * LANES + 16)};
        float* out = y + size_t(r) * size_t(ldy);
        __builtin_prefetch(out + WRITE_AHEAD * ldy, 1);
        __builtin_prefetch(out + WRITE_AHEAD * ldy + 16, 1);
        float edge[LANES] = {};
        if (lanes < LANES) std::memcpy(edge, out, size_t(lanes) * 4);
        float* at = lanes < LANES ? edge : out;
        for (int h = 0; h < 2; ++h) {
            if (bias) v[h] = v[h] + load<f16v>(bias + 16 * h);
            if (flags & CG_ADD) v[h] = load<f16v>(at + 16 * h) + v[h];
            store(at + 16 * h, v[h]);
        }
        if (lanes < LANES) std::memcpy(out, edge, size_t(lanes) * 4);
    }
}

// x * sigmoid(x), from 2^-|x| so that nothing overflows.
CG_INLINE f16v silu(f16v x) {
    const f16v magnitude = (f16v)((u16v)x & splat_bits(0x7fffffffu));
    const f16v e = exp2_16(magnitude * splat(-1.44269504f));
    const f16v one = splat(1.0f);
    return x * ((x < f16v{} ? e : one) / (one + e));
}

void store_silu(const float* gate, const float* up, int rows, const cg_rows* out, int row0, int at) {
    const int group_bytes = int(callgate::row_stride_bytes(out->kind, CG_GROUP));
    for (int r = 0; r < rows; ++r) {
        __builtin_prefetch(row_of(out, row0 + r + WRITE_AHEAD) + at * group_bytes, 1);
        f16v h[2];
        for (int i = 0; i < 2; ++i)
            h[i] = silu(load<f16v>(gate + r * LANES + 16 * i)) * load<f16v>(up + r * LANES + 16 * i);
        put_group(out, row0 + r, at, h[0], h[1]);
    }
}

}  // namespace
