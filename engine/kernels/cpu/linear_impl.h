// The linear layers, for AVX-512 with VNNI and for AVX2, whose loops over a group are in linear_micro_*.h.
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

#if defined(__AVX512F__)
#include "linear_micro_avx512.h"
#else
#include "linear_micro_avx2.h"
#endif

namespace {

using callgate::TILE_GROUPS;

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
    Sums<R> sums(out, add);
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
            one_group<F, R>(super, w, x, stride, sums, PASS == UNPACK ? tile : nullptr, PASS == CACHED);
            w += F::BYTES;
            if (PASS == UNPACK) tile += Unpacked<F>::BYTES;
            ++x;
        }
    }
    sums.finish();
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

template <class F>
void float_block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t*) {
    const auto* x = static_cast<const typename F::T*>(rows_data);
    constexpr int TILE_K = 256;
    for (int i = 0; i < k; i += TILE_K) {
        const int n = k - i < TILE_K ? k - i : TILE_K;
        for (int r = 0; r < rows;)
            r += float_rows<F>(rows - r, w, x + size_t(r) * size_t(k) + i, size_t(k), n, acc + r * LANES, i > 0);
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

const callgate::Kernels KERNELS = {
    block<CG_Q4_0>, block<CG_Q4_1>, block<CG_Q5_0>,    block<CG_Q5_1>,   block<CG_Q8_0>, block<CG_Q4_K>, block<CG_Q5_K>,
    block<CG_Q6_K>, float_block<Bf16>, float_block<F32>, set_row, store_block, store_silu, read_all, dots,
};

}  // namespace
