// Linear layers in plain C++, for any machine: the arithmetic of linear_impl.h, one lane after the other.
#include "half.h"
#include "linear_rows.h"

namespace {

using callgate::half_to_float;
using callgate::load_u16;
using callgate::PackInfo;
using callgate::pack_info;

// One group of 32 outputs x 32 k: signed codes, and up to two float scales per output.
struct Tile {
    int16_t w[8][LANES][4];
    float s[LANES], t[LANES];
};

void codes(int fmt, const uint8_t* g, Tile* tile) {
    const PackInfo p = pack_info(fmt);
    const int zero = fmt == CG_Q4_0 ? 8 : fmt == CG_Q5_0 ? 16 : fmt == CG_Q6_K ? 32 : fmt == CG_Q8_0 ? 128 : 0;
    int16_t* out = &tile->w[0][0][0];
    for (int i = 0; i < 1024; ++i) {
        const int quad = i / 128, at = i % 128;
        int q;
        if (fmt == CG_Q8_0) q = g[i];
        else q = (g[p.low_at + quad / 2 * 128 + at] >> (quad % 2 * 4)) & 15;
        if (fmt == CG_Q6_K) q |= ((g[p.high_at + quad / 4 * 128 + at] >> (quad % 4 * 2)) & 3) << 4;
        if (fmt == CG_Q5_0 || fmt == CG_Q5_1 || fmt == CG_Q5_K) q |= ((g[p.high_at + at] >> quad) & 1) << 4;
        out[i] = int16_t(q - zero);
    }
}

void scales(int fmt, const uint8_t* super, const uint8_t* g, Tile* tile) {
    const uint8_t* p = g + pack_info(fmt).scale_at;
    for (int l = 0; l < LANES; ++l) {
        if (fmt == CG_Q6_K) {
            const float d = half_to_float(load_u16(super + 2 * l));
            tile->s[l] = d * float(int8_t(p[l]));
            tile->t[l] = d * float(int8_t(p[32 + l]));
        } else if (fmt == CG_Q4_K || fmt == CG_Q5_K) {
            tile->s[l] = half_to_float(load_u16(super + 2 * l)) * float(p[l]);
            tile->t[l] = half_to_float(load_u16(super + 64 + 2 * l)) * float(p[32 + l]);
        } else {
            tile->s[l] = half_to_float(load_u16(p + 2 * l));
            tile->t[l] = fmt == CG_Q4_1 || fmt == CG_Q5_1 ? -half_to_float(load_u16(p + 64 + 2 * l)) : 0.0f;
        }
    }
}

void dot(const Tile& tile, const int8_t* x, int q0, int q1, int32_t* out) {
    for (int l = 0; l < LANES; ++l) out[l] = 0;
    for (int q = q0; q < q1; ++q)
        for (int l = 0; l < LANES; ++l)
            for (int j = 0; j < 4; ++j) out[l] += int32_t(tile.w[q][l][j]) * int32_t(x[4 * q + j]);
}

template <int FMT>
void block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t*) {
    constexpr PackInfo P = pack_info(FMT);
    constexpr bool MINIMUM = FMT == CG_Q4_1 || FMT == CG_Q5_1 || FMT == CG_Q4_K || FMT == CG_Q5_K;
    const auto* x = static_cast<const cg_q8_group*>(rows_data);
    const int groups = k / CG_GROUP;
    std::memset(acc, 0, size_t(rows) * LANES * sizeof(float));
    const uint8_t* super = w;
    for (int g = 0; g < groups; ++g, w += P.group_bytes) {
        if (g % P.super_groups == 0) super = w, w += P.super_bytes;
        Tile tile;
        codes(FMT, w, &tile);
        scales(FMT, super, w, &tile);
        for (int r = 0; r < rows; ++r) {
            const cg_q8_group& xg = x[size_t(r) * size_t(groups) + size_t(g)];
            float* a = acc + r * LANES;
            int32_t d[LANES], d1[LANES];
            dot(tile, xg.q, 0, FMT == CG_Q6_K ? 4 : 8, d);
            if (FMT == CG_Q6_K) dot(tile, xg.q, 4, 8, d1);
            for (int l = 0; l < LANES; ++l) {
                if (MINIMUM) a[l] += tile.t[l] * xg.neg_sum;
                a[l] += (float(d[l]) * xg.scale) * tile.s[l];
                if (FMT == CG_Q6_K) a[l] += (float(d1[l]) * xg.scale) * tile.t[l];
            }
        }
    }
}

void bf16_block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t*) {
    const auto* x = static_cast<const uint16_t*>(rows_data);
    for (int r = 0; r < rows; ++r) {
        float a[LANES] = {};
        for (int i = 0; i < k; ++i) {
            const float v = callgate::bf16_to_float(x[size_t(r) * size_t(k) + size_t(i)]);
            const uint8_t* p = w + size_t(i / 2) * 128 + size_t(i % 2) * 2;
            for (int l = 0; l < LANES; ++l) a[l] += callgate::bf16_to_float(load_u16(p + 4 * l)) * v;
        }
        std::memcpy(acc + r * LANES, a, sizeof a);
    }
}

void f32_block(const uint8_t* w, int k, const void* rows_data, int rows, float* acc, uint8_t*) {
    const auto* x = static_cast<const float*>(rows_data);
    for (int r = 0; r < rows; ++r) {
        float a[LANES] = {};
        for (int i = 0; i < k; ++i) {
            float p[LANES];
            std::memcpy(p, w + size_t(i) * 128, sizeof p);
            for (int l = 0; l < LANES; ++l) a[l] += p[l] * x[size_t(r) * size_t(k) + size_t(i)];
        }
        std::memcpy(acc + r * LANES, a, sizeof a);
    }
}

uint64_t read_all(const uint8_t* memory, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v;
        std::memcpy(&v, memory + i, 8);
        sum ^= v;
    }
    return sum;
}

double dots(int rounds) {
    Tile tile;
    std::memset(&tile, 1, sizeof tile);
    int8_t x[32];
    std::memset(x, 1, sizeof x);
    int32_t out[LANES], sum = 0;
    for (int i = 0; i < rounds; ++i) {
        x[i % 32] = int8_t(sum);
        dot(tile, x, 0, 8, out);
        sum += out[0];
    }
    return double(rounds) * 2048 + (sum == 1 ? 1e-9 : 0);
}

const callgate::Kernels KERNELS = {
    block<CG_Q4_0>, block<CG_Q4_1>, block<CG_Q5_0>, block<CG_Q5_1>, block<CG_Q8_0>, block<CG_Q4_K>, block<CG_Q5_K>,
    block<CG_Q6_K>, bf16_block,     f32_block,      set_row,        store_block,    store_silu,
    read_all,       dots,
};

}  // namespace

const callgate::Kernels* callgate::kernels_portable() { return &KERNELS; }
