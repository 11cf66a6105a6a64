// The packed weight layout, shared by the packer (quant.cpp) and the kernels (linear_impl.h).
//
// A matrix is cut into blocks of 32 outputs; a block holds its K values group by group (32 of k), every part
// a multiple of 64 bytes, so one layer is one forward stream of whole cache lines. Inside a group:
//   (parts in the order in which they are first read: high bits, low bits, scales)
//   nibbles [4 quad pairs][2 halves][16 lanes][4 k]  low nibble: quad 2p, high nibble: quad 2p+1   (512 bytes)
//   fifth bits [2 halves][16 lanes][4 k] bit q: quad q                                               (128 bytes)
//   bits 4..5 [2][2 halves][64] two bits each of quads 4p..4p+3                                        (256 bytes)
//   bytes [8 quads][2 halves][16 lanes][4 k], offset by 128                                          (1024 bytes)
//   scales: float16 [32 lanes], then float16 minima [32]; K-quants: uint8 scales [32], uint8 minima [32]; Q6_K:
//   int8 scales of k 0..15 [32], of k 16..31 [32]
// K-quants put the super-block's float16 d [32] (and dmin [32]) in front of its eight groups. A quad is four
// consecutive k: what one lane of VPDPBUSD eats. Every GGUF type keeps its width but for K-quant's 6-bit
// scales, which take a byte (Q4_K 4.5 -> 4.625 bits a weight).
// BF16: [k/2][32 lanes][2]; F32: [k][32 lanes].
#pragma once

#include <cstddef>
#include <cstdint>

#include "callgate_cpu.h"

namespace callgate {

constexpr int LANES = 32;

struct PackInfo {
    int group_bytes;
    int high_at;        // offset of the fifth bits, or of bits 4..5
    int low_at;         // offset of the nibbles or bytes
    int scale_at;
    int super_groups;   // groups per super-block
    int super_bytes;    // in front of a super-block's groups
};

constexpr PackInfo pack_info(int fmt) {
    switch (fmt) {
        case CG_Q4_0: return {512 + 64, 0, 0, 512, 1, 0};
        case CG_Q4_1: return {512 + 128, 0, 0, 512, 1, 0};
        case CG_Q5_0: return {128 + 512 + 64, 0, 128, 640, 1, 0};
        case CG_Q5_1: return {128 + 512 + 128, 0, 128, 640, 1, 0};
        case CG_Q8_0: return {1024 + 64, 0, 0, 1024, 1, 0};
        case CG_Q4_K: return {512 + 64, 0, 0, 512, 8, 128};
        case CG_Q5_K: return {128 + 512 + 64, 0, 128, 640, 8, 128};
        case CG_Q6_K: return {256 + 512 + 64, 0, 256, 768, 8, 64};
        case CG_BF16: return {LANES * 2 * CG_GROUP, 0, 0, 0, 1, 0};
        case CG_F32: return {LANES * 4 * CG_GROUP, 0, 0, 0, 1, 0};
        default: return {0, 0, 0, 0, 1, 0};
    }
}

enum Kind { SYMMETRIC, MINIMUM, HALVES };  // one scale a group; a minimum too; a scale for each half

constexpr Kind kind_of(int fmt) {
    if (fmt == CG_Q6_K) return HALVES;
    return fmt == CG_Q4_0 || fmt == CG_Q5_0 || fmt == CG_Q8_0 ? SYMMETRIC : MINIMUM;
}

constexpr size_t block_bytes(int fmt, int k) {
    const PackInfo p = pack_info(fmt);
    const size_t groups = size_t(k) / CG_GROUP;
    return groups * size_t(p.group_bytes) + groups / size_t(p.super_groups) * size_t(p.super_bytes);
}

constexpr size_t group_offset(const PackInfo& p, int group) {
    return size_t(group) * size_t(p.group_bytes) + size_t(group / p.super_groups + 1) * size_t(p.super_bytes);
}

// Raw rows of `fmt` to the packed form, and one output back to floats. False where fmt cannot be packed.
bool packable(int fmt, int k);
int packed_fmt(int fmt);  // F16 is packed as F32
void pack_matrix(int fmt, int n, int k, const void* raw, uint8_t* out);
// Raw rows of Q8_0 packed as Q5_0, and how far a product with each can be from one with the row itself: error * |x|.
void pack_coarse(int n, int k, const void* q8, uint8_t* out, float* errors);
void unpack_row(int fmt, int k, const uint8_t* block, int lane, float* out);

}  // namespace callgate
