// The inner loop over quantized weights for AVX-512 with VNNI: a block's 32 outputs are two vectors, and an int32 and a
// float accumulator for each of up to six rows stay in registers.
#pragma once

#include "half.h"
#include "linear_rows.h"

namespace {

using namespace callgate;

typedef uint8_t u64v __attribute__((vector_size(64)));
typedef uint16_t s32v __attribute__((vector_size(64)));

constexpr int PREFETCH_BYTES = 8192;

// Shifts move 16-bit lanes: what crosses from one byte into the next is for the caller to mask.
CG_INLINE u64v shift_left(u64v v, int n) { return (u64v)((s32v)v << n); }
CG_INLINE u64v shift_right(u64v v, int n) { return (u64v)((s32v)v >> n); }
CG_INLINE u64v mask_bytes(u64v v, uint8_t mask) { return v & (u64v{} + mask); }

// acc[l] += sum_j w[4l+j] * x[4l+j]; w unsigned, x the same four int8 in every lane.
CG_INLINE i16v dot4(i16v acc, u64v w, i16v x) {
    return (i16v)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
}

CG_INLINE f16v load_half(const uint8_t* p) {
    return (f16v)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

template <bool SIGNED>
CG_INLINE f16v load_bytes(const uint8_t* p) {
    const __m128i v = load<__m128i>(p);
    return (f16v)_mm512_cvtepi32_ps(SIGNED ? _mm512_cvtepi8_epi32(v) : _mm512_cvtepu8_epi32(v));
}

// low | (high & mask)
CG_INLINE u64v join(u64v low, u64v high, uint8_t mask) {
    return (u64v)_mm512_ternarylogic_epi32((__m512i)low, (__m512i)high, (__m512i)(u64v{} + mask), 0xf8);
}

// Bits of v moved so that bit `from` becomes bit 4; neighbours and what crosses bytes are for the caller to mask.
CG_INLINE u64v to_bit4(u64v v, int from) {
    return from < 4 ? shift_left(v, 4 - from) : from > 4 ? shift_right(v, from - 4) : v;
}

// A packed type as the inner loop sees it: quad q of half h as bytes, and two float vectors per half.
template <int FMT>
struct Packed {
    static constexpr PackInfo INFO = pack_info(FMT);
    static constexpr Kind KIND = kind_of(FMT);
    static constexpr int ZERO = FMT == CG_Q4_0                       ? 8
                                : FMT == CG_Q5_0                     ? 16
                                : FMT == CG_Q6_K                     ? 32
                                : FMT == CG_Q8_0 ? 128
                                                                       : 0;
    static constexpr int SUPER_GROUPS = INFO.super_groups, SUPER_BYTES = INFO.super_bytes, BYTES = INFO.group_bytes;

    CG_INLINE u64v quad(const uint8_t* g, int q, int h) {
        if (FMT == CG_Q8_0) return load<u64v>(g + (q * 2 + h) * 64);
        u64v v = load<u64v>(g + INFO.low_at + ((q >> 1) * 2 + h) * 64);
        v = mask_bytes(q & 1 ? shift_right(v, 4) : v, 15);
        if (FMT == CG_Q6_K) return join(v, to_bit4(load<u64v>(g + ((q >> 2) * 2 + h) * 64), q % 4 * 2), 0x30);
        if (FMT == CG_Q5_0 || FMT == CG_Q5_1 || FMT == CG_Q5_K) return join(v, to_bit4(load<u64v>(g + h * 64), q), 0x10);
        return v;
    }

    CG_INLINE void scales(const uint8_t* super, const uint8_t* g, int h, f16v* s, f16v* t) {
        const uint8_t* p = g + INFO.scale_at;
        if (FMT == CG_Q6_K) {
            const f16v d = load_half(super + 32 * h);
            *s = d * load_bytes<true>(p + 16 * h);
            *t = d * load_bytes<true>(p + 32 + 16 * h);
        } else if (INFO.super_bytes) {
            *s = load_half(super + 32 * h) * load_bytes<false>(p + 16 * h);
            *t = load_half(super + 64 + 32 * h) * load_bytes<false>(p + 32 + 16 * h);
        } else {
            *s = load_half(p + 32 * h);
            if (KIND == MINIMUM) *t = -load_half(p + 64 + 32 * h);
        }
    }
};

// A tile unpacked to bytes and float scales: [8 quads][2 halves][64], then s [32] (and t [32]).
template <class F>
struct Unpacked {
    static constexpr Kind KIND = F::KIND;
    static constexpr int ZERO = F::ZERO;
    static constexpr int SUPER_GROUPS = 1, SUPER_BYTES = 0, BYTES = KIND == SYMMETRIC ? 1152 : 1280;

    CG_INLINE u64v quad(const uint8_t* g, int q, int h) { return load<u64v>(g + (q * 2 + h) * 64); }
    CG_INLINE void scales(const uint8_t*, const uint8_t* g, int h, f16v* s, f16v* t) {
        *s = load<f16v>(g + 1024 + 64 * h);
        if (KIND != SYMMETRIC) *t = load<f16v>(g + 1152 + 64 * h);
    }
};

// What the int32 sum of a group, or of a half of it, starts from.
template <class F>
CG_INLINE i16v start(const cg_q8_group& x, int half = 0) {
    switch (F::ZERO) {
        case 8: return splat_i(x.start_8);
        case 16: return splat_i(x.start_16);
        case 32: return splat_i(x.start_32[half]);
        case 128: return splat_i(x.start_128);
        default: return (i16v)splat_f(x.base);
    }
}

// dot * s_x, from where start() began.
CG_INLINE f16v product(i16v sum, const cg_q8_group& x) { return (f16v)sum - splat_f(x.base); }

CG_INLINE i16v quad_of(const cg_q8_group* x, int q) {
    int32_t bits;
    std::memcpy(&bits, x->q + 4 * q, 4);
    return splat_i(bits);
}

// R rows times one group: the integer part of quads [q0, q1).
// tile: where to leave the unpacked bytes for further rows, or nullptr.
template <class F, int R>
CG_INLINE void dot_quads(const uint8_t* g, const cg_q8_group* x, size_t stride, int q0, int q1, i16v (&dot)[R][2],
                         uint8_t* tile) {
#pragma GCC unroll 8
    for (int q = q0; q < q1; ++q) {
        const u64v w0 = F::quad(g, q, 0), w1 = F::quad(g, q, 1);
        if (tile) {
            store(tile + q * 128, w0);
            store(tile + q * 128 + 64, w1);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const i16v v = quad_of(x + size_t(r) * stride, q);
            dot[r][0] = dot4(dot[r][0], w0, v);
            dot[r][1] = dot4(dot[r][1], w1, v);
        }
    }
}

// out[R][32] while groups are added to it: in registers.
template <int R>
struct Sums {
    f16v acc[R][2];
    float* out;

    CG_METHOD Sums(float* to, bool add) : out(to) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            acc[r][0] = add ? load<f16v>(out + r * LANES) : f16v{};
            acc[r][1] = add ? load<f16v>(out + r * LANES + 16) : f16v{};
        }
    }
    CG_METHOD void finish() const {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            store(out + r * LANES, acc[r][0]);
            store(out + r * LANES + 16, acc[r][1]);
        }
    }
};

// next: whether further rows follow these, whose activations are then asked for.
template <class F, int R>
CG_INLINE void one_group(const uint8_t* super, const uint8_t* g, const cg_q8_group* x, size_t stride, Sums<R>& sums,
                         uint8_t* tile, bool next) {
    f16v(&acc)[R][2] = sums.acc;
    i16v dot[R][2];
    f16v s[2], t[2] = {};
    F::scales(super, g, 0, &s[0], &t[0]);
    F::scales(super, g, 1, &s[1], &t[1]);
    if (tile) {
        store(tile + 1024, s[0]);
        store(tile + 1088, s[1]);
        if (F::KIND != SYMMETRIC) {
            store(tile + 1152, t[0]);
            store(tile + 1216, t[1]);
        }
    }
    constexpr int PARTS = F::KIND == HALVES ? 2 : 1, QUADS = 8 / PARTS;
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; ++part) {
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            if (next && part == 0) __builtin_prefetch(x + size_t(R + r) * stride);
            dot[r][0] = dot[r][1] = start<F>(x[size_t(r) * stride], part);
        }
        dot_quads<F, R>(g, x, stride, QUADS * part, QUADS * part + QUADS, dot, tile);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const cg_q8_group& xr = x[size_t(r) * stride];
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                if (F::KIND == MINIMUM) acc[r][h] = fma16(t[h], splat_f(xr.neg_sum), acc[r][h]);
                acc[r][h] = fma16(product(dot[r][h], xr), part ? t[h] : s[h], acc[r][h]);
            }
        }
    }
}

// As many rows as the registers hold: an int32 and a float accumulator each.
template <class F>
constexpr int max_rows() {
    return F::KIND == MINIMUM ? 5 : 6;
}

struct Bf16 {
    typedef uint16_t T;
    static constexpr int STEP = 2, BYTES = 128;
    CG_INLINE f16v mul_add(f16v acc, const uint8_t* w, const uint16_t* x) {
        uint32_t pair;
        std::memcpy(&pair, x, 4);
        return dot_bf16(acc, splat_bits(pair), load<u16v>(w));
    }
};

struct F32 {
    typedef float T;
    static constexpr int STEP = 1, BYTES = 128;
    CG_INLINE f16v mul_add(f16v acc, const uint8_t* w, const float* x) { return fma16(splat_f(*x), load<f16v>(w), acc); }
};

template <class F, int R>
__attribute__((noinline)) void float_micro(const uint8_t* w, const typename F::T* x, size_t stride, int k, float* out, bool add) {
    f16v acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        acc[r][0] = add ? load<f16v>(out + r * LANES) : f16v{};
        acc[r][1] = add ? load<f16v>(out + r * LANES + 16) : f16v{};
    }
    for (int i = 0; i < k; i += F::STEP, w += F::BYTES) {
        __builtin_prefetch(w + PREFETCH_BYTES);
        __builtin_prefetch(w + PREFETCH_BYTES + 64);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            acc[r][0] = F::mul_add(acc[r][0], w, x + size_t(r) * stride + i);
            acc[r][1] = F::mul_add(acc[r][1], w + 64, x + size_t(r) * stride + i);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        store(out + r * LANES, acc[r][0]);
        store(out + r * LANES + 16, acc[r][1]);
    }
}

// Adds k products to as many of `rows` as one pass takes; returns how many.
template <class F>
int float_rows(int rows, const uint8_t* w, const typename F::T* x, size_t stride, int k, float* out, bool add) {
    if (rows >= 8) return float_micro<F, 8>(w, x, stride, k, out, add), 8;
    if (rows >= 4) return float_micro<F, 4>(w, x, stride, k, out, add), 4;
    if (rows >= 2) return float_micro<F, 2>(w, x, stride, k, out, add), 2;
    return float_micro<F, 1>(w, x, stride, k, out, add), 1;
}

double dots(int rounds) {
    constexpr int CHAINS = 12;
    i16v acc[CHAINS] = {}, x = splat_i(rounds);
    u64v w = u64v{} + uint8_t(rounds);
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; ++c) {
            acc[c] = dot4(acc[c], w, x);
            asm("" : "+v"(acc[c]));  // twelve equal sums would be computed once
        }
    }
#pragma GCC unroll 12
    for (int c = 1; c < CHAINS; ++c) acc[0] += acc[c];
    return double(rounds) * CHAINS * 128 + (acc[0][0] == 1 ? 1e-9 : 0);
}

}  // namespace
