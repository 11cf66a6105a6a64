// The inner loop over quantized weights for AVX2, which has no dot product of bytes: VPMADDUBSW adds two products into
// sixteen bits, and as many of those are added as sixteen bits hold before VPMADDWD widens them. Sixteen registers do
// not hold the float accumulators too: these are in memory, touched once per group.
//
// A block's 32 outputs are four vectors of eight, two of which are computed at a time.
#pragma once

#include "half.h"
#include "linear_rows.h"

namespace {

using namespace callgate;

constexpr int PREFETCH_BYTES = 4096;

CG_INLINE __m256i bytes_at(const uint8_t* p) { return load<__m256i>(p); }
CG_INLINE __m256i low_bits(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(char(mask))); }

// Bits of v moved so that bit `from` becomes bit 4; neighbours and what crosses bytes are for the caller to mask.
CG_INLINE __m256i to_bit4(__m256i v, int from) {
    return from < 4 ? _mm256_slli_epi16(v, 4 - from) : from > 4 ? _mm256_srli_epi16(v, from - 4) : v;
}

CG_INLINE __m256 halves_at(const uint8_t* p) { return _mm256_cvtph_ps(load<__m128i>(p)); }

template <bool SIGNED>
CG_INLINE __m256 byte_scales_at(const uint8_t* p) {
    const __m128i b = _mm_loadl_epi64((const __m128i*)p);
    return _mm256_cvtepi32_ps(SIGNED ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

// A packed type as the inner loop sees it: quad q of outputs 8 v .. 8 v + 7 as bytes, and two float vectors for those.
template <int FMT>
struct Packed {
    static constexpr PackInfo INFO = pack_info(FMT);
    static constexpr Kind KIND = kind_of(FMT);
    static constexpr bool WIDE = FMT == CG_Q8_0;
    static constexpr int ZERO = FMT == CG_Q4_0 ? 8 : FMT == CG_Q5_0 ? 16 : FMT == CG_Q6_K ? 32 : 0;
    // Quads whose products sixteen bits hold: 2 * 127 * (2^BITS - 1) each.
    static constexpr int NARROW = INFO.low_at == 0 ? 8 : FMT == CG_Q6_K ? 2 : 4;
    static constexpr int SUPER_GROUPS = INFO.super_groups, SUPER_BYTES = INFO.super_bytes, BYTES = INFO.group_bytes;

    CG_INLINE __m256i quad(const uint8_t* g, int q, int v) {
        // Bytes are offset by 128 in memory.
        if (WIDE) return _mm256_xor_si256(bytes_at(g + q * 128 + v * 32), _mm256_set1_epi8(-128));
        const __m256i both = bytes_at(g + INFO.low_at + (q >> 1) * 128 + v * 32);
        const __m256i low = low_bits(q & 1 ? _mm256_srli_epi16(both, 4) : both, 15);
        if (FMT == CG_Q6_K)
            return _mm256_or_si256(low, low_bits(to_bit4(bytes_at(g + (q >> 2) * 128 + v * 32), q % 4 * 2), 0x30));
        if (NARROW == 4) return _mm256_or_si256(low, low_bits(to_bit4(bytes_at(g + v * 32), q), 0x10));
        return low;
    }

    CG_INLINE void scales(const uint8_t* super, const uint8_t* g, int v, __m256* s, __m256* t) {
        const uint8_t* p = g + INFO.scale_at;
        if (FMT == CG_Q6_K) {
            const __m256 d = halves_at(super + 16 * v);
            *s = _mm256_mul_ps(d, byte_scales_at<true>(p + 8 * v));
            *t = _mm256_mul_ps(d, byte_scales_at<true>(p + 32 + 8 * v));
        } else if (INFO.super_bytes) {
            *s = _mm256_mul_ps(halves_at(super + 16 * v), byte_scales_at<false>(p + 8 * v));
            *t = _mm256_mul_ps(halves_at(super + 64 + 16 * v), byte_scales_at<false>(p + 32 + 8 * v));
        } else {
            *s = halves_at(p + 16 * v);
            if (KIND == MINIMUM) *t = _mm256_xor_ps(halves_at(p + 64 + 16 * v), _mm256_set1_ps(-0.0f));
        }
    }
};

// A tile unpacked to bytes and float scales: [8 quads][32 outputs][4], then s [32] (and t [32]).
template <class F>
struct Unpacked {
    static constexpr Kind KIND = F::KIND;
    static constexpr bool WIDE = F::WIDE;
    static constexpr int ZERO = F::ZERO, NARROW = F::NARROW;
    static constexpr int SUPER_GROUPS = 1, SUPER_BYTES = 0, BYTES = KIND == SYMMETRIC ? 1152 : 1280;

    CG_INLINE __m256i quad(const uint8_t* g, int q, int v) { return bytes_at(g + q * 128 + v * 32); }
    CG_INLINE void scales(const uint8_t*, const uint8_t* g, int v, __m256* s, __m256* t) {
        *s = load<__m256>(g + 1024 + 32 * v);
        if (KIND != SYMMETRIC) *t = load<__m256>(g + 1152 + 32 * v);
    }
};

// What the int32 sum of a group, or of a half of it, starts from.
template <class F>
CG_INLINE __m256i start(const cg_q8_group& x, int half) {
    switch (F::ZERO) {
        case 8: return _mm256_set1_epi32(x.start_8);
        case 16: return _mm256_set1_epi32(x.start_16);
        case 32: return _mm256_set1_epi32(x.start_32[half]);
        default: return _mm256_castps_si256(_mm256_set1_ps(x.base));
    }
}

CG_INLINE __m256i quad_of(const cg_q8_group* x, int q) {
    int32_t bits;
    std::memcpy(&bits, x->q + 4 * q, 4);
    return _mm256_set1_epi32(bits);
}

// Keeps sums in registers and in this order: the compiler would sort the additions into a tree of products in memory.
template <int R>
CG_INLINE void hold(__m256i (&v)[R][2]) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) asm("" : "+x"(v[r][0]), "+x"(v[r][1]));
}

// sum[r][i] = quads [q0, q0 + COUNT) of R rows, widened once for every F::NARROW quads.
template <class F, int R, int COUNT>
CG_INLINE void dot_quads(const uint8_t* g, const cg_q8_group* x, size_t stride, int q0, int v, __m256i (&sum)[R][2],
                         uint8_t* tile) {
    const __m256i ones = _mm256_set1_epi16(1);
    constexpr int NARROW = F::WIDE ? 1 : F::NARROW < COUNT ? F::NARROW : COUNT;
#pragma GCC unroll 8
    for (int part = 0; part < COUNT; part += NARROW) {
        __m256i narrow[R][2];
#pragma GCC unroll 8
        for (int j = 0; j < NARROW; ++j) {
            const int q = q0 + part + j;
            const __m256i w[2] = {F::quad(g, q, v), F::quad(g, q, v + 1)};
            if (tile) {
                store(tile + q * 128 + v * 32, w[0]);
                store(tile + q * 128 + v * 32 + 32, w[1]);
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                const __m256i xq = quad_of(x + size_t(r) * stride, q);
#pragma GCC unroll 2
                for (int i = 0; i < 2; ++i) {
                    const __m256i p = F::WIDE ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(xq, w[i]))
                                              : _mm256_maddubs_epi16(w[i], xq);
                    narrow[r][i] = j ? _mm256_add_epi16(narrow[r][i], p) : p;
                }
            }
            hold<R>(narrow);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const __m256i wide = _mm256_madd_epi16(narrow[r][i], ones);
                sum[r][i] = part ? _mm256_add_epi32(sum[r][i], wide) : wide;
            }
    }
}

// Outputs 8 v .. 8 v + 15 of R rows times one group, added to out[R][32].
template <class F, int R>
CG_INLINE void pair_of_vectors(const uint8_t* super, const uint8_t* g, const cg_q8_group* x, size_t stride, int v, float* out,
                               uint8_t* tile) {
    __m256 s[2], t[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        F::scales(super, g, v + i, &s[i], &t[i]);
        if (!tile) continue;
        store(tile + 1024 + 32 * (v + i), s[i]);
        if (F::KIND != SYMMETRIC) store(tile + 1152 + 32 * (v + i), t[i]);
    }
    constexpr int PARTS = F::KIND == HALVES ? 2 : 1, QUADS = 8 / PARTS;
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; ++part) {
        __m256i sum[R][2];
        dot_quads<F, R, QUADS>(g, x, stride, QUADS * part, v, sum, tile);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const cg_q8_group& xr = x[size_t(r) * stride];
            const __m256i from = start<F>(xr, part);
            float* to = out + r * LANES + 8 * v;
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                __m256 acc = load<__m256>(to + 8 * i);
                if (F::KIND == MINIMUM) acc = _mm256_fmadd_ps(t[i], _mm256_set1_ps(xr.neg_sum), acc);
                const __m256 p = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_add_epi32(sum[r][i], from)), _mm256_set1_ps(xr.base));
                store(to + 8 * i, _mm256_fmadd_ps(p, part ? t[i] : s[i], acc));
            }
        }
    }
}

// out[R][32] while groups are added to it: in memory.
template <int R>
struct Sums {
    float* out;

    CG_METHOD Sums(float* to, bool add) : out(to) {
        if (!add) std::memset(out, 0, sizeof(float) * size_t(R) * LANES);
    }
    CG_METHOD void finish() const {}
};

// next: whether further rows follow these, whose activations are then asked for.
template <class F, int R>
CG_INLINE void one_group(const uint8_t* super, const uint8_t* g, const cg_q8_group* x, size_t stride, Sums<R>& sums,
                         uint8_t* tile, bool next) {
    if (next)
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) __builtin_prefetch(x + size_t(R + r) * stride);
#pragma GCC unroll 2
    for (int v = 0; v < 4; v += 2) pair_of_vectors<F, R>(super, g, x, stride, v, sums.out, tile);
}

template <class F>
constexpr int max_rows() {
    return 4;
}

// ---- unquantized weights: [k / STEP][32 outputs][STEP], one accumulator per output, k ascending

struct Bf16 {
    typedef uint16_t T;
    static constexpr int STEP = 2, BYTES = 128;

    template <int R>
    CG_INLINE void add(__m256 (&acc)[R][4], const uint8_t* w, const uint16_t* x, size_t stride) {
        const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
        __m256 first[R], second[R];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
            int32_t bits;
            std::memcpy(&bits, x + size_t(r) * stride, 4);
            const __m256i pair = _mm256_set1_epi32(bits);
            first[r] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
            second[r] = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
        }
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const __m256i pairs = load<__m256i>(w + 32 * v);
            const __m256 w0 = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
            const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(pairs, high));
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) acc[r][v] = _mm256_fmadd_ps(second[r], w1, _mm256_fmadd_ps(first[r], w0, acc[r][v]));
        }
    }
};

struct F32 {
    typedef float T;
    static constexpr int STEP = 1, BYTES = 128;

    template <int R>
    CG_INLINE void add(__m256 (&acc)[R][4], const uint8_t* w, const float* x, size_t stride) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v)
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r)
                acc[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + size_t(r) * stride), load<__m256>(w + 32 * v), acc[r][v]);
    }
};

template <class F, int R>
__attribute__((noinline)) void float_micro(const uint8_t* w, const typename F::T* x, size_t stride, int k, float* out, bool add) {
    __m256 acc[R][4];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) acc[r][v] = add ? load<__m256>(out + r * LANES + 8 * v) : _mm256_setzero_ps();
    for (int i = 0; i < k; i += F::STEP, w += F::BYTES) {
        __builtin_prefetch(w + PREFETCH_BYTES);
        __builtin_prefetch(w + PREFETCH_BYTES + 64);
        F::template add<R>(acc, w, x + i, stride);
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) store(out + r * LANES + 8 * v, acc[r][v]);
}

// Adds k products to as many of `rows` as one pass takes; returns how many.
template <class F>
int float_rows(int rows, const uint8_t* w, const typename F::T* x, size_t stride, int k, float* out, bool add) {
    if (rows >= 2) return float_micro<F, 2>(w, x, stride, k, out, add), 2;
    return float_micro<F, 1>(w, x, stride, k, out, add), 1;
}

double dots(int rounds) {
    constexpr int CHAINS = 6;
    __m256i acc[CHAINS] = {}, x = _mm256_set1_epi8(char(rounds)), w = _mm256_set1_epi8(1);
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 6
        for (int c = 0; c < CHAINS; ++c) {
            asm("" : "+x"(w));  // equal products would be computed once
            acc[c] = _mm256_add_epi16(acc[c], _mm256_maddubs_epi16(w, x));
        }
    }
#pragma GCC unroll 6
    for (int c = 1; c < CHAINS; ++c) acc[0] = _mm256_add_epi16(acc[0], acc[c]);
    return double(rounds) * CHAINS * 64 + (_mm256_extract_epi16(acc[0], 0) == 1 ? 1e-9 : 0);
}

}  // namespace
