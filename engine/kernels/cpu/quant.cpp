// GGUF block types: decoding raw rows, quantizing float rows, and packing both for the kernels.
//
// Packing is exact for every type: codes, float16 scales and 6-bit sub-scales are moved, never recomputed, so a
// packed layer represents bit for bit the weights that dequantising the file gives. The block layouts follow the
// GGUF specification (ggml's block_q* structs).
#include <cmath>
#include <cstring>
#include <vector>

#include "callgate_cpu.h"
#include "half.h"
#include "packed.h"

namespace callgate {
namespace {

struct RawInfo {
    int block;  // values
    int bytes;
};

RawInfo raw_info(int fmt) {
    switch (fmt) {
        case CG_F32: return {1, 4};
        case CG_F16: return {1, 2};
        case CG_BF16: return {1, 2};
        case CG_Q4_0: return {32, 18};
        case CG_Q4_1: return {32, 20};
        case CG_Q5_0: return {32, 22};
        case CG_Q5_1: return {32, 24};
        case CG_Q8_0: return {32, 34};
        case CG_Q4_K: return {256, 144};
        case CG_Q5_K: return {256, 176};
        case CG_Q6_K: return {256, 210};
        default: return {0, 0};
    }
}

// One group of 32 weights as the file holds it: w = (d * scale[k/16]) * (q - zero) - (dmin * minimum).
struct Group {
    uint8_t q[32];
    int zero;
    uint16_t d, dmin;        // float16 bits; dmin: also Q4_1's and Q5_1's m, which is added
    uint8_t scale[2];        // K-quants; Q6_K: int8 bits of both halves
    uint8_t minimum;
};

void nibbles(const uint8_t* qs, const uint8_t* qh, Group* g) {
    uint32_t high = 0;
    if (qh) std::memcpy(&high, qh, 4);
    for (int j = 0; j < 16; ++j) {
        g->q[j] = uint8_t((qs[j] & 15) | (((high >> j) & 1) << 4));
        g->q[j + 16] = uint8_t((qs[j] >> 4) | (((high >> (j + 16)) & 1) << 4));
    }
}

void k_scale(const uint8_t* s, int j, Group* g) {
    if (j < 4) {
        g->scale[0] = g->scale[1] = s[j] & 63;
        g->minimum = s[j + 4] & 63;
    } else {
        g->scale[0] = g->scale[1] = uint8_t((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        g->minimum = uint8_t((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

void decode_k45(const uint8_t* block, bool five, int j, Group* g) {
    g->zero = 0;
    g->d = load_u16(block);
    g->dmin = load_u16(block + 2);
    k_scale(block + 4, j, g);
    const uint8_t* qs = block + (five ? 48 : 16) + 32 * (j / 2);
    for (int l = 0; l < 32; ++l) {
        g->q[l] = (j & 1) ? qs[l] >> 4 : qs[l] & 15;
        if (five) g->q[l] = uint8_t(g->q[l] | (((block[16 + l] >> j) & 1) << 4));
    }
}

void decode_q6k(const uint8_t* block, int j, Group* g) {
    g->zero = 32;
    g->d = load_u16(block + 208);
    g->scale[0] = block[192 + 2 * j];
    g->scale[1] = block[192 + 2 * j + 1];
    const uint8_t* ql = block + 64 * (j / 4) + 32 * (j & 1);
    const uint8_t* qh = block + 128 + 32 * (j / 4);
    for (int l = 0; l < 32; ++l) {
        const int low = (j & 2) ? ql[l] >> 4 : ql[l] & 15;
        g->q[l] = uint8_t(low | (((qh[l] >> (2 * (j & 3))) & 3) << 4));
    }
}

void decode_group(int fmt, const uint8_t* row, int group, Group* g) {
    const RawInfo raw = raw_info(fmt);
    const uint8_t* b = row + size_t(group / (raw.block / 32)) * size_t(raw.bytes);
    std::memset(g, 0, sizeof *g);
    g->d = load_u16(b);
    switch (fmt) {
        case CG_Q4_0: g->zero = 8; return nibbles(b + 2, nullptr, g);
        case CG_Q4_1: g->dmin = load_u16(b + 2); return nibbles(b + 4, nullptr, g);
        case CG_Q5_0: g->zero = 16; return nibbles(b + 6, b + 2, g);
        case CG_Q5_1: g->dmin = load_u16(b + 2); return nibbles(b + 8, b + 4, g);
        case CG_Q8_0:
            g->zero = 128;
            for (int j = 0; j < 32; ++j) g->q[j] = b[2 + j] ^ 0x80;
            return;
        case CG_Q4_K: return decode_k45(b, false, group % 8, g);
        case CG_Q5_K: return decode_k45(b, true, group % 8, g);
        case CG_Q6_K: return decode_q6k(b, group % 8, g);
        default: return;
    }
}

void dequant_group(int fmt, const Group& g, float* out) {
    const float d = half_to_float(g.d), dmin = half_to_float(g.dmin);
    for (int j = 0; j < 32; ++j) {
        const int q = int(g.q[j]) - g.zero;
        switch (fmt) {
            case CG_Q4_1: case CG_Q5_1: out[j] = d * float(q) + dmin; break;
            case CG_Q4_K: case CG_Q5_K: out[j] = (d * float(g.scale[0])) * float(q) - dmin * float(g.minimum); break;
            case CG_Q6_K: out[j] = (d * float(int8_t(g.scale[j / 16]))) * float(q); break;
            default: out[j] = d * float(q);
        }
    }
}

bool has_fifth(int fmt) { return fmt == CG_Q5_0 || fmt == CG_Q5_1 || fmt == CG_Q5_K; }
bool is_float(int fmt) { return fmt == CG_F32 || fmt == CG_F16 || fmt == CG_BF16; }

// Where code k (0..31) of a lane lives. q = k / 4 is its quad.
size_t byte_at(int k, int lane) { return size_t(((k / 4) * 2 + lane / 16) * 64 + (lane % 16) * 4 + k % 4); }
size_t nibble_at(int k, int lane) { return size_t(((k / 8) * 2 + lane / 16) * 64 + (lane % 16) * 4 + k % 4); }
size_t pair_at(int k, int lane) { return size_t(((k / 16) * 2 + lane / 16) * 64 + (lane % 16) * 4 + k % 4); }

void put_codes(int fmt, const Group& g, int lane, uint8_t* out) {
    const PackInfo p = pack_info(fmt);
    for (int k = 0; k < 32; ++k) {
        const uint8_t q = g.q[k];
        if (fmt == CG_Q8_0) {
            out[byte_at(k, lane)] = q;
            continue;
        }
        out[p.low_at + nibble_at(k, lane)] |= uint8_t((q & 15) << ((k / 4 & 1) * 4));
        if (fmt == CG_Q6_K) out[p.high_at + pair_at(k, lane)] |= uint8_t((q >> 4) << (2 * (k / 4 % 4)));
        if (has_fifth(fmt)) out[p.high_at + byte_at(k % 4, lane)] |= uint8_t((q >> 4) << (k / 4));
    }
}

void get_codes(int fmt, const uint8_t* in, int lane, Group* g) {
    const PackInfo p = pack_info(fmt);
    for (int k = 0; k < 32; ++k) {
        if (fmt == CG_Q8_0) {
            g->q[k] = in[byte_at(k, lane)];
            continue;
        }
        g->q[k] = (in[p.low_at + nibble_at(k, lane)] >> ((k / 4 & 1) * 4)) & 15;
        if (fmt == CG_Q6_K) g->q[k] |= uint8_t(((in[p.high_at + pair_at(k, lane)] >> (2 * (k / 4 % 4))) & 3) << 4);
        if (has_fifth(fmt)) g->q[k] |= uint8_t(((in[p.high_at + byte_at(k % 4, lane)] >> (k / 4)) & 1) << 4);
    }
}

void put_scales(int fmt, const Group& g, int lane, uint8_t* group, uint8_t* super) {
    uint8_t* s = group + pack_info(fmt).scale_at;
    if (!pack_info(fmt).super_bytes) {
        store_u16(s + 2 * lane, g.d);
        if (fmt == CG_Q4_1 || fmt == CG_Q5_1) store_u16(s + 64 + 2 * lane, g.dmin);
        return;
    }
    store_u16(super + 2 * lane, g.d);
    s[lane] = g.scale[0];
    s[32 + lane] = fmt == CG_Q6_K ? g.scale[1] : g.minimum;
    if (fmt != CG_Q6_K) store_u16(super + 64 + 2 * lane, g.dmin);
}

void get_scales(int fmt, const uint8_t* group, const uint8_t* super, int lane, Group* g) {
    const uint8_t* s = group + pack_info(fmt).scale_at;
    if (!pack_info(fmt).super_bytes) {
        g->d = load_u16(s + 2 * lane);
        if (fmt == CG_Q4_1 || fmt == CG_Q5_1) g->dmin = load_u16(s + 64 + 2 * lane);
        return;
    }
    g->d = load_u16(super + 2 * lane);
    g->scale[0] = s[lane];
    g->scale[1] = g->minimum = s[32 + lane];
    if (fmt != CG_Q6_K) g->dmin = load_u16(super + 64 + 2 * lane);
}

float raw_float(int fmt, const uint8_t* p, size_t i) {
    float f;
    switch (fmt) {
        case CG_F16: return half_to_float(load_u16(p + 2 * i));
        case CG_BF16: return bf16_to_float(load_u16(p + 2 * i));
        default: std::memcpy(&f, p + 4 * i, 4); return f;
    }
}

int zero_of(int fmt) {
    return fmt == CG_Q4_0 ? 8 : fmt == CG_Q5_0 ? 16 : fmt == CG_Q8_0 ? 128 : fmt == CG_Q6_K ? 32 : 0;
}

void pack_float_lane(int fmt, int k, const uint8_t* row, int lane, uint8_t* block) {
    for (int i = 0; i < k; ++i) {
        if (fmt == CG_BF16) {
            std::memcpy(block + ((size_t(i) / 2 * LANES + size_t(lane)) * 2 + size_t(i) % 2) * 2, row + 2 * i, 2);
        } else {
            const float f = raw_float(fmt, row, size_t(i));
            std::memcpy(block + (size_t(i) * LANES + size_t(lane)) * 4, &f, 4);
        }
    }
}

void pack_lane(int fmt, int k, const uint8_t* row, int lane, uint8_t* block) {
    const PackInfo p = pack_info(fmt);
    for (int j = 0; j < k / CG_GROUP; ++j) {
        Group g;
        decode_group(fmt, row, j, &g);
        uint8_t* group = block + group_offset(p, j);
        uint8_t* super = block + group_offset(p, j - j % p.super_groups) - p.super_bytes;
        put_codes(fmt, g, lane, group);
        put_scales(fmt, g, lane, group, super);
    }
}

// Scale and offset of one group, then codes; d is rounded to float16 before the codes are chosen.
void quantize_group(int fmt, const float* x, uint8_t* out) {
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; ++j) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    const bool low_wins = -low > high;
    float d;
    if (fmt == CG_Q8_0) d = (low_wins ? -low : high) / 127.0f;
    else if (fmt == CG_Q4_1) d = (high - low) / 15.0f;
    else d = (low_wins ? low : high) / -8.0f;  // the extreme value gets code 0, which reaches one step further
    const uint16_t d16 = float_to_half(d), m16 = float_to_half(fmt == CG_Q4_1 ? low : 0.0f);
    const float dr = half_to_float(d16), inverse = dr != 0.0f ? 1.0f / dr : 0.0f;
    const float base = half_to_float(m16);
    store_u16(out, d16);
    if (fmt == CG_Q4_1) store_u16(out + 2, m16);
    const int bottom = fmt == CG_Q8_0 ? -127 : fmt == CG_Q4_1 ? 0 : -8;
    const int top = fmt == CG_Q8_0 ? 127 : fmt == CG_Q4_1 ? 15 : 7;
    for (int j = 0; j < 32; ++j) {
        const float scaled = (x[j] - base) * inverse;
        const int rounded = scaled != scaled ? 0 : int(std::lrintf(std::fmin(std::fmax(scaled, -128.0f), 127.0f)));
        const int q = rounded < bottom ? bottom : rounded > top ? top : rounded;
        if (fmt == CG_Q8_0) out[2 + j] = uint8_t(int8_t(q));
        else if (j < 16) out[(fmt == CG_Q4_1 ? 4 : 2) + j] = uint8_t(q - bottom);
        else out[(fmt == CG_Q4_1 ? 4 : 2) + j - 16] |= uint8_t((q - bottom) << 4);
    }
}

// The upper five bits of every code, rounded, and eight times its scale. By Cauchy and Schwarz the products differ by no
// more than the length of what is left out times that of x. Each of the two sums is rounded twice per group at most, each
// time by 2^-24 of no more than |row| |x|; of the coarse row, which is at most twice as long (4 becomes 8), twice that.
void coarse_row(int k, const uint8_t* q8, uint8_t* q5, float* error) {
    double whole = 0, left_out = 0;
    for (int j = 0; j < k / CG_GROUP; ++j, q8 += 34, q5 += 22) {
        const float scale = half_to_float(load_u16(q8));
        const uint16_t coarse = float_to_half(8.0f * scale);
        int64_t squares = 0, differences = 0;
        uint32_t high = 0;
        for (int i = 0; i < CG_GROUP; ++i) {
            const int q = int8_t(q8[2 + i]);
            const int code = q >= 124 ? 15 : (q + 4) >> 3;  // 128 / 8 would be one more than five bits hold
            const uint8_t bits = uint8_t(code + 16);
            squares += q * q;
            differences += (q - 8 * code) * (q - 8 * code);
            high |= uint32_t(bits >> 4) << i;
            uint8_t& nibbles = q5[6 + i % 16];
            nibbles = i < 16 ? bits & 15 : uint8_t(nibbles | (bits << 4));
        }
        store_u16(q5, coarse);
        std::memcpy(q5 + 2, &high, 4);
        // A scale that is not finite, or whose eightfold float16 does not hold, leaves no bound.
        const double s = std::isfinite(half_to_float(coarse)) && half_to_float(coarse) == 8.0f * scale ? double(scale) : std::nan("");
        whole += s * s * double(squares);
        left_out += s * s * double(differences);
    }
    const double rounding = (4.0 * k / CG_GROUP + 32) * 0x1p-24;
    *error = float((std::sqrt(left_out) + rounding * 2 * std::sqrt(whole)) * 1.0001);
}

}  // namespace

bool packable(int fmt, int k) {
    const RawInfo raw = raw_info(fmt);
    return raw.block && k > 0 && k % CG_GROUP == 0 && k % raw.block == 0;
}

int packed_fmt(int fmt) { return fmt == CG_F16 ? CG_F32 : fmt; }

void pack_matrix(int fmt, int n, int k, const void* raw, uint8_t* out) {
    const size_t stride = cg_row_bytes(fmt, k), block = block_bytes(packed_fmt(fmt), k);
    const auto* rows = static_cast<const uint8_t*>(raw);
    std::memset(out, 0, size_t((n + LANES - 1) / LANES) * block);
    for (int row = 0; row < n; ++row) {
        uint8_t* b = out + size_t(row / LANES) * block;
        if (is_float(fmt)) pack_float_lane(fmt, k, rows + size_t(row) * stride, row % LANES, b);
        else pack_lane(fmt, k, rows + size_t(row) * stride, row % LANES, b);
    }
}

void pack_coarse(int n, int k, const void* q8, uint8_t* out, float* errors) {
    const size_t stride = cg_row_bytes(CG_Q8_0, k), coarse_stride = cg_row_bytes(CG_Q5_0, k);
    std::vector<uint8_t> coarse(size_t(LANES) * coarse_stride);  // a block at a time: a whole head would be large
    for (int row = 0; row < n; row += LANES, out += block_bytes(CG_Q5_0, k)) {
        const int count = n - row < LANES ? n - row : LANES;
        for (int i = 0; i < count; ++i)
            coarse_row(k, static_cast<const uint8_t*>(q8) + size_t(row + i) * stride, coarse.data() + size_t(i) * coarse_stride,
                       errors + row + i);
        pack_matrix(CG_Q5_0, count, k, coarse.data(), out);
    }
}

void unpack_row(int fmt, int k, const uint8_t* block, int lane, float* out) {
    const PackInfo p = pack_info(fmt);
    if (is_float(fmt)) {
        for (int i = 0; i < k; ++i) {
            if (fmt == CG_BF16)
                out[i] = bf16_to_float(load_u16(block + ((size_t(i) / 2 * LANES + size_t(lane)) * 2 + size_t(i) % 2) * 2));
            else
                std::memcpy(out + i, block + (size_t(i) * LANES + size_t(lane)) * 4, 4);
        }
        return;
    }
    for (int j = 0; j < k / CG_GROUP; ++j) {
        Group g;
        std::memset(&g, 0, sizeof g);
        g.zero = zero_of(fmt);
        const uint8_t* group = block + group_offset(p, j);
        get_codes(fmt, group, lane, &g);
        get_scales(fmt, group, block + group_offset(p, j - j % p.super_groups) - p.super_bytes, lane, &g);
        dequant_group(fmt, g, out + CG_GROUP * j);
    }
}

}  // namespace callgate

using namespace callgate;

extern "C" {

size_t cg_row_bytes(int fmt, int k) {
    const RawInfo raw = raw_info(fmt);
    if (!raw.block || k <= 0 || k % raw.block) return 0;
    return size_t(k / raw.block) * size_t(raw.bytes);
}

int cg_dequant_row(int fmt, const void* raw_row, int k, float* out) {
    if (!cg_row_bytes(fmt, k)) return CG_EINVAL;
    const auto* row = static_cast<const uint8_t*>(raw_row);
    if (is_float(fmt)) {
        for (int i = 0; i < k; ++i) out[i] = raw_float(fmt, row, size_t(i));
        return CG_OK;
    }
    for (int j = 0; j < k / CG_GROUP; ++j) {
        Group g;
        decode_group(fmt, row, j, &g);
        dequant_group(fmt, g, out + CG_GROUP * j);
    }
    return CG_OK;
}

int cg_embed_rows(int fmt, const void* raw, int n, int k, const int32_t* ids, int m, float* out, int ldo) {
    const size_t stride = cg_row_bytes(fmt, k);
    if (!stride || ldo < k) return CG_EINVAL;
    for (int i = 0; i < m; ++i)
        if (ids[i] < 0 || ids[i] >= n) return CG_EINVAL;
    for (int i = 0; i < m; ++i)
        cg_dequant_row(fmt, static_cast<const uint8_t*>(raw) + size_t(ids[i]) * stride, k, out + size_t(i) * size_t(ldo));
    return CG_OK;
}

int cg_quantize_weights(int dst_fmt, int src_fmt, const void* src, int n, int k, void* dst) {
    const size_t stride = cg_row_bytes(dst_fmt, k), src_stride = cg_row_bytes(src_fmt, k);
    if (!is_float(src_fmt) || !stride || n < 0) return CG_EINVAL;
    if (dst_fmt != CG_Q8_0 && dst_fmt != CG_Q4_0 && dst_fmt != CG_Q4_1) return CG_EUNSUPPORTED;
    const size_t block = size_t(raw_info(dst_fmt).bytes);
    for (int row = 0; row < n; ++row) {
        const auto* from = static_cast<const uint8_t*>(src) + size_t(row) * src_stride;
        auto* to = static_cast<uint8_t*>(dst) + size_t(row) * stride;
        for (int j = 0; j < k / CG_GROUP; ++j) {
            float x[CG_GROUP];
            for (int i = 0; i < CG_GROUP; ++i) x[i] = raw_float(src_fmt, from, size_t(j * CG_GROUP + i));
            quantize_group(dst_fmt, x, to + size_t(j) * block);
        }
    }
    return CG_OK;
}

}  // extern "C"
