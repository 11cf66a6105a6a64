// The linear layers' inner loops over sixteen-lane vectors, for AVX-512 with VNNI and for AVX2.
//
// The arithmetic of one output, the same in every path below (this is what makes a row's bits independent of the
// batch): for each group of 32 k in ascending order
//     dot  = sum q_w * q_x - zero * sum q_x     exact, int32
//     p    = dot * s_x                          exact: s_x is a power of two
//     acc  = fma(t, -(sum q_x) * s_x, acc)      [types with a minimum: w = s * q - t]
//     acc  = fma(p, s_w, acc)                   [Q6_K: one after the other for its two halves]
// p costs one subtraction and no conversion: the int32 sum starts at the bits of 1.5 * 2^23 * s_x, less the zero point's
// share. As |dot| < 2^22, the sum's bits are those of a float in the same binade, which is p more.
#pragma once

#include "half.h"
#include "linear_rows.h"

namespace {

using callgate::PackInfo;
using callgate::pack_info;
using callgate::TILE_GROUPS;

typedef uint8_t u64v __attribute__((vector_size(64)));
typedef uint16_t s32v __attribute__((vector_size(64)));

#if defined(__AVX512F__)
constexpr bool NATIVE_DOT = true;  // VPDPBUSD: any byte times any int8
#else
constexpr bool NATIVE_DOT = false;
#endif

#if defined(__AVX512F__)
constexpr int PREFETCH_BYTES = 8192;
#else
constexpr int PREFETCH_BYTES = 1024;
#endif

#if defined(__AVX512F__)
// Shifts move 16-bit lanes: what crosses from one byte into the next is for the caller to mask.
CG_INLINE u64v shift_left(u64v v, int n) { return (u64v)((s32v)v << n); }
CG_INLINE u64v shift_right(u64v v, int n) { return (u64v)((s32v)v >> n); }
CG_INLINE u64v mask_bytes(u64v v, uint8_t mask) { return v & (u64v{} + mask); }
#else
// By halves and by hand: left to the compiler, operations on vectors wider than the machine's go through memory.
template <class Op>
CG_INLINE u64v by_halves(u64v v, Op op) {
    __m256i a[2];
    std::memcpy(a, &v, 64);
    a[0] = op(a[0]);
    a[1] = op(a[1]);
    std::memcpy(&v, a, 64);
    return v;
}

CG_INLINE u64v shift_left(u64v v, int n) {
    return by_halves(v, [n](__m256i a) { return _mm256_slli_epi16(a, n); });
}
CG_INLINE u64v shift_right(u64v v, int n) {
    return by_halves(v, [n](__m256i a) { return _mm256_srli_epi16(a, n); });
}
CG_INLINE u64v mask_bytes(u64v v, uint8_t mask) {
    return by_halves(v, [mask](__m256i a) { return _mm256_and_si256(a, _mm256_set1_epi8(char(mask))); });
}
#endif

// acc[l] += sum_j w[4l+j] * x[4l+j]; w unsigned, x the same four int8 in every lane.
// WIDE: w uses all eight bits; without VPDPBUSD it is then taken as w - 128.
template <bool WIDE>
CG_INLINE i16v dot4(i16v acc, u64v w, i16v x) {
#if defined(__AVX512F__)
    return (i16v)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#else
    __m256i a[2], b[2], c[2];
    std::memcpy(a, &w, 64);
    std::memcpy(b, &x, 64);
    std::memcpy(c, &acc, 64);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; ++i) {
        if (WIDE) {
            a[i] = _mm256_xor_si256(a[i], _mm256_set1_epi8(-128));
            b[i] = _mm256_sign_epi8(b[i], a[i]);
            a[i] = _mm256_abs_epi8(a[i]);
        }
        c[i] = _mm256_add_epi32(c[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a[i], b[i]), ones));
    }
    std::memcpy(&acc, c, 64);
    return acc;
#endif
}

CG_INLINE f16v load_half(const uint8_t* p) {
#if defined(__AVX512F__)
    return (f16v)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
    const __m256 f[2] = {_mm256_cvtph_ps(load<__m128i>(p)), _mm256_cvtph_ps(load<__m128i>(p + 16))};
    return load<f16v>(f);
#endif
}

template <bool SIGNED>
CG_INLINE f16v load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
    const __m128i v = load<__m128i>(p);
    return (f16v)_mm512_cvtepi32_ps(SIGNED ? _mm512_cvtepi8_epi32(v) : _mm512_cvtepu8_epi32(v));
#else
    __m256i v[2];
    for (int i = 0; i < 2; ++i) {
        const __m128i b = _mm_loadl_epi64((const __m128i*)(p + 8 * i));
        v[i] = SIGNED ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b);
    }
    return to_float(load<i16v>(v));
#endif
}

// low | (high & mask)
CG_INLINE u64v join(u64v low, u64v high, uint8_t mask) {
#if defined(__AVX512F__)
    return (u64v)_mm512_ternarylogic_epi32((__m512i)low, (__m512i)high, (__m512i)(u64v{} + mask), 0xf8);
#else
    __m256i a[2], b[2];
    std::memcpy(a, &low, 64);
    std::memcpy(b, &high, 64);
    for (int i = 0; i < 2; ++i) a[i] = _mm256_or_si256(a[i], _mm256_and_si256(b[i], _mm256_set1_epi8(char(mask))));
    std::memcpy(&low, a, 64);
    return low;
#endif
}

// Bits of v moved so that bit `from` becomes bit 4; neighbours and what crosses bytes are for the caller to mask.
CG_INLINE u64v to_bit4(u64v v, int from) {
    return from < 4 ? shift_left(v, 4 - from) : from > 4 ? shift_right(v, from - 4) : v;
}

enum Kind { SYMMETRIC, MINIMUM, HALVES };

// A packed type as the inner loop sees it: quad q of half h as bytes, and two float vectors per half.
template <int FMT>
struct Packed {
    static constexpr PackInfo INFO = pack_info(FMT);
    static constexpr Kind KIND = FMT == CG_Q6_K                                                        ? HALVES
                                 : FMT == CG_Q4_0 || FMT == CG_Q5_0 || FMT == CG_Q8_0 ? SYMMETRIC
                                                                                                        : MINIMUM;
    static constexpr bool WIDE = FMT == CG_Q8_0;
    static constexpr int ZERO = FMT == CG_Q4_0                       ? 8
                                : FMT == CG_Q5_0                     ? 16
                                : FMT == CG_Q6_K                     ? 32
                                : FMT == CG_Q8_0 && NATIVE_DOT ? 128
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
    static constexpr bool WIDE = F::WIDE;
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
            dot[r][0] = dot4<F::WIDE>(dot[r][0], w0, v);
            dot[r][1] = dot4<F::WIDE>(dot[r][1], w1, v);
        }
    }
}

// next: whether further rows follow these, whose activations are then asked for.
template <class F, int R>
CG_INLINE void one_group(const uint8_t* super, const uint8_t* g, const cg_q8_group* x, size_t stride, f16v (&acc)[R][2],
                         uint8_t* tile, bool next) {
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
    return !NATIVE_DOT ? 2 : F::KIND == MINIMUM ? 5 : 6;
}

// What a pass over the weights does besides computing.
enum Pass {
    CACHED,   // nothing: the weights are an unpacked tile in L1
    STREAM,   // they come from memory, once: fetches PREFETCH_BYTES ahead
    UNPACK    // leaves them unpacked in `tile` for further rows
};

// Cache lines to ask for while a pass computes: `lines` with every group, from `at` on.
struct Ahead {
    const uint8_t* at;
    int lines;
};

// out[R][32] (+)= over `groups` groups.
template <class F, int R, Pass PASS>
__attribute__((noinline)) void micro(const uint8_t* w, const cg_q8_group* x, size_t stride, int groups, float* out, bool add,
                                     uint8_t* tile, Ahead ahead) {
    f16v acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        acc[r][0] = add ? load<f16v>(out + r * LANES) : f16v{};
        acc[r][1] = add ? load<f16v>(out + r * LANES + 16) : f16v{};
    }
    for (int g0 = 0; g0 < groups; g0 += F::SUPER_GROUPS) {
        const uint8_t* super = w;
        w += F::SUPER_BYTES;
        for (int i = 0; i < F::SUPER_GROUPS; ++i) {
            if (PASS == STREAM) {
#pragma GCC unroll 24
                for (int b = 0; b < F::BYTES; b += 64) __builtin_prefetch(w + PREFETCH_BYTES + b);
            } else {
                for (int line = 0; line < ahead.lines; ++line, ahead.at += 64) __builtin_prefetch(ahead.at);
            }
            one_group<F, R>(super, w, x, stride, acc, PASS == UNPACK ? tile : nullptr, PASS == CACHED);
            w += F::BYTES;
            if (PASS == UNPACK) tile += Unpacked<F>::BYTES;
            ++x;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        store(out + r * LANES, acc[r][0]);
        store(out + r * LANES + 16, acc[r][1]);
    }
}

template <class F, Pass PASS>
CG_INLINE void micro_rows(int rows, const uint8_t* w, const cg_q8_group* x, size_t stride, int groups, float* out, bool add,
                          uint8_t* tile = nullptr, Ahead ahead = {nullptr, 0}) {
    constexpr int MAX = max_rows<F>();
    switch (rows) {
        case 1: return micro<F, 1, PASS>(w, x, stride, groups, out, add, tile, ahead);
        case 2: return micro<F, MAX < 2 ? 1 : 2, PASS>(w, x, stride, groups, out, add, tile, ahead);
        case 3: return micro<F, MAX < 3 ? 1 : 3, PASS>(w, x, stride, groups, out, add, tile, ahead);
        case 4: return micro<F, MAX < 4 ? 1 : 4, PASS>(w, x, stride, groups, out, add, tile, ahead);
        case 5: return micro<F, MAX < 5 ? 1 : 5, PASS>(w, x, stride, groups, out, add, tile, ahead);
        case 6: return micro<F, MAX < 6 ? 1 : 6, PASS>(w, x, stride, groups, out, add, tile, ahead);
        default: return;
    }
}

// Rows cut evenly, so that seven rows are 4 + 3 and not 6 + 1.
template <int FMT>
void block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t* scratch) {
    using F = Packed<FMT>;
    constexpr int MAX = max_rows<F>();
    const int groups = k / CG_GROUP;
    const auto* x = static_cast<const cg_q8_group*>(rows_data);
    const size_t stride = size_t(groups);
    if (rows <= MAX) return micro_rows<F, STREAM>(rows, w, x, stride, groups, acc, false);
    const int tile_groups = rows < 48 ? 8 : TILE_GROUPS;
    const int parts = (rows + MAX - 1) / MAX;
    for (int g = 0; g < groups; g += tile_groups) {
        const int n = groups - g < tile_groups ? groups - g : tile_groups;
        const uint8_t* next = w + size_t(n) * size_t(F::BYTES) + size_t(n / F::SUPER_GROUPS) * size_t(F::SUPER_BYTES);
        // All passes over a tile fetch ahead, in equal shares: memory is then as busy as the multipliers.
        const int lines = int(size_t(next - w) / 64), share = (lines + parts * n - 1) / (parts * n);
        for (int b = 0, r = 0; b < parts; ++b) {
            const int count = (rows - r + parts - b - 1) / (parts - b);
            const auto* xr = x + g + size_t(r) * stride;
            float* out = acc + r * LANES;
            const int first = b * n * share;
            const Ahead ahead = {w + PREFETCH_BYTES + size_t(first) * 64, first < lines ? share : 0};
            if (b == 0) micro_rows<F, UNPACK>(count, w, xr, stride, n, out, g > 0, scratch, ahead);
            else micro_rows<Unpacked<F>, CACHED>(count, scratch, xr, stride, n, out, g > 0, nullptr, ahead);
            r += count;
        }
        w = next;
    }
}

// ---- unquantized weights: one accumulator per output, k ascending -----------------------------------------------

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

template <class F>
void float_block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t*) {
    const auto* x = static_cast<const typename F::T*>(rows_data);
    constexpr int TILE_K = 256;
    for (int i = 0; i < k; i += TILE_K) {
        const int n = k - i < TILE_K ? k - i : TILE_K;
        for (int r = 0; r < rows;) {
            const auto* xr = x + size_t(r) * size_t(k) + i;
            float* out = acc + r * LANES;
            if (rows - r >= 8) float_micro<F, 8>(w, xr, size_t(k), n, out, i > 0), r += 8;
            else if (rows - r >= 4) float_micro<F, 4>(w, xr, size_t(k), n, out, i > 0), r += 4;
            else if (rows - r >= 2) float_micro<F, 2>(w, xr, size_t(k), n, out, i > 0), r += 2;
            else float_micro<F, 1>(w, xr, size_t(k), n, out, i > 0), r += 1;
        }
        w += n / F::STEP * F::BYTES;
    }
}

// ---- the machine's limits ----------------------------------------------------------------------------------------

uint64_t read_all(const uint8_t* memory, size_t bytes) {
    u16v x[4] = {};
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        __builtin_prefetch(memory + i + PREFETCH_BYTES);
        __builtin_prefetch(memory + i + PREFETCH_BYTES + 64);
        __builtin_prefetch(memory + i + PREFETCH_BYTES + 128);
        __builtin_prefetch(memory + i + PREFETCH_BYTES + 192);
        for (size_t j = 0; j < 4; ++j) x[j] ^= load<u16v>(memory + i + 64 * j);
    }
    const u16v all = x[0] ^ x[1] ^ x[2] ^ x[3];
    return uint64_t(all[0]) + all[15];
}

double dots(int rounds) {
    constexpr int CHAINS = 12;
    i16v acc[CHAINS] = {}, x = splat_i(rounds);
    u64v w = u64v{} + uint8_t(rounds);
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; ++c) {
            acc[c] = dot4<false>(acc[c], w, x);
#if defined(__AVX512F__)
            asm("" : "+v"(acc[c]));  // twelve equal sums would be computed once
#endif
        }
    }
#pragma GCC unroll 12
    for (int c = 1; c < CHAINS; ++c) acc[0] += acc[c];
    return double(rounds) * CHAINS * 128 + (acc[0][0] == 1 ? 1e-9 : 0);
}

const callgate::Kernels KERNELS = {
    block<CG_Q4_0>, block<CG_Q4_1>, block<CG_Q5_0>,    block<CG_Q5_1>,   block<CG_Q8_0>, block<CG_Q4_K>, block<CG_Q5_K>,
    block<CG_Q6_K>, float_block<Bf16>, float_block<F32>, set_row, store_block, store_silu, read_all, dots,
};

}  // namespace
