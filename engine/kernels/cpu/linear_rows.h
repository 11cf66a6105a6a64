// How rows enter and leave the linear layers: quantization, bias and residual, silu(gate) * up. Elementwise or within
// one group of 32, so a row never sees its neighbours.
#pragma once

#include "linear.h"
#include "quantize_rows.h"
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

// Nearest bfloat16, ties to even; NaN stays NaN.
CG_INLINE void store_bf16(uint16_t* p, f16v v) {
    store(p, __builtin_convertvector(round_bf16(v) >> 16, h16v));
}

// Outputs are written down a column of rows, a cache line here and there: ask for the lines this many rows ahead.
constexpr int WRITE_AHEAD = 8;

CG_INLINE char* row_of(const cg_rows* rows, int row) {
    return static_cast<char*>(rows->data) + size_t(row) * callgate::row_stride_bytes(rows->kind, rows->k);
}

// 32 values of one row that is not quantized, from the 32 * `at`th.
CG_INLINE void put_floats(const cg_rows* rows, int row, int at, f16v a, f16v b) {
    char* base = row_of(rows, row);
    if (rows->kind == CG_ROWS_BF16) {
        store_bf16(reinterpret_cast<uint16_t*>(base) + at * 32, a);
        store_bf16(reinterpret_cast<uint16_t*>(base) + at * 32 + 16, b);
    } else {
        store(base + size_t(at) * 128, a);
        store(base + size_t(at) * 128 + 64, b);
    }
}

void set_row(const cg_rows* rows, int row, const float* x) {
    const int groups = rows->k / CG_GROUP;
    if (rows->kind != CG_ROWS_Q8) {
        for (int g = 0; g < groups; ++g) put_floats(rows, row, g, load<f16v>(x + 32 * g), load<f16v>(x + 32 * g + 16));
        return;
    }
    for (int g = 0; g < groups; g += BATCH) {
        const int count = groups - g < BATCH ? groups - g : BATCH;
        f16v v[BATCH][2] = {};
        for (int i = 0; i < count; ++i)
            for (int h = 0; h < 2; ++h) v[i][h] = load<f16v>(x + 32 * (g + i) + 16 * h);
        quantize_batch(row_of(rows, row) + size_t(g) * sizeof(cg_q8_group), sizeof(cg_q8_group), v, count);
    }
}

void store_block(const float* acc, int rows, int lanes, const float* bias, float* y, int ldy, int flags) {
    for (int r = 0; r < rows; ++r) {
        f16v v[2] = {load<f16v>(acc + r * LANES), load<f16v>(acc + r * LANES + 16)};
        float* out = y + size_t(r) * size_t(ldy);
        if (r + WRITE_AHEAD < rows) {
            __builtin_prefetch(out + WRITE_AHEAD * ldy, 1);
            __builtin_prefetch(out + WRITE_AHEAD * ldy + 16, 1);
        }
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

// 1 / x for 1 <= x <= 2^126: the machine's estimate (14 bits) and one Newton step, where a division takes several times
// that.
CG_INLINE f16v reciprocal(f16v x) {
#if defined(__AVX512F__)
    const f16v r = (f16v)_mm512_rcp14_ps((__m512)x);
    return fma16(r, fma16(-x, r, splat_f(1.0f)), r);
#else
    return splat_f(1.0f) / x;
#endif
}

#if CG_EIGHT_LANES

CG_INLINE __m256 silu_8(__m256 x) {
    const __m256 low = _mm256_set1_ps(-87.0f);
    // max gives its second operand for NaN; the sum below brings the NaN back.
    const __m256 e = exp2_8(_mm256_mul_ps(_mm256_min_ps(_mm256_max_ps(x, low), _mm256_set1_ps(87.0f)), _mm256_set1_ps(-1.44269504f)));
    const __m256 y = _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
}

// silu(gate) * up of sixteen values.
CG_INLINE f16v gated(const float* gate, const float* up) {
    const __m256 v[2] = {_mm256_mul_ps(silu_8(load<__m256>(gate)), load<__m256>(up)),
                         _mm256_mul_ps(silu_8(load<__m256>(gate + 8)), load<__m256>(up + 8))};
    return load<f16v>(v);
}

#else

// x * sigmoid(x) = x / (1 + 2^(-x log2 e)), 0 below -87 (it is 1e-36 there), where the power would soon be infinite. NaN
// stays NaN.
CG_INLINE f16v silu(f16v x) {
    const f16v low = splat_f(-87.0f);
    const f16v e = exp2_16(max16(low, x) * splat_f(-1.44269504f));
    return x < low ? f16v{} : x * reciprocal(splat_f(1.0f) + e);
}

CG_INLINE f16v gated(const float* gate, const float* up) { return silu(load<f16v>(gate)) * load<f16v>(up); }

#endif

void store_silu(const float* gate, const float* up, int rows, const cg_rows* out, int row0, int at) {
    const size_t group_bytes = callgate::row_stride_bytes(out->kind, CG_GROUP);
    const size_t stride = callgate::row_stride_bytes(out->kind, out->k);
    for (int r0 = 0; r0 < rows; r0 += BATCH) {
        const int count = rows - r0 < BATCH ? rows - r0 : BATCH;
        char* base = row_of(out, row0 + r0) + size_t(at) * group_bytes;
        f16v v[BATCH][2] = {};
        for (int i = 0; i < count; ++i) {
            if (r0 + i + BATCH < rows) __builtin_prefetch(base + size_t(i + BATCH) * stride, 1);
            for (int h = 0; h < 2; ++h) {
                const size_t from = size_t(r0 + i) * LANES + size_t(16 * h);
                v[i][h] = gated(gate + from, up + from);
            }
        }
        if (out->kind == CG_ROWS_Q8) quantize_batch(base, stride, v, count);
        else
            for (int i = 0; i < count; ++i) put_floats(out, row0 + r0 + i, at, v[i][0], v[i][1]);
    }
}

}  // namespace
