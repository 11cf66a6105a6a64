// What each instruction-set level supplies to the linear layers, and how a packed layer looks in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "callgate_cpu.h"
#include "packed.h"

namespace callgate {

// One block of 32 outputs for `rows` activation rows: acc[rows][32] = x * w^T. scratch: SCRATCH_BYTES.
using BlockFn = void (*)(const uint8_t* w, int k, const void* x, int rows, float* acc, uint8_t* scratch);

constexpr int TILE_GROUPS = 16;                       // K is unpacked this many groups at a time: stays in L1
constexpr size_t SCRATCH_BYTES = TILE_GROUPS * 1280;  // bytes plus two float scales per lane
constexpr int ROW_CHUNK = 256;                        // rows per accumulator tile

struct Kernels {
    BlockFn q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, bf16, f32;
    void (*set_row)(const cg_rows* rows, int row, const float* x);
    // y[rows][lanes] = acc (+ bias) (+ y)
    void (*store)(const float* acc, int rows, int lanes, const float* bias, float* y, int ldy, int flags);
    // out[row0 + r][32 * block ..] = silu(gate) * up
    void (*store_silu)(const float* gate, const float* up, int rows, const cg_rows* out, int row0, int block);
    // Benchmarks: reads memory once; multiplies and adds in registers, returning how many operations that were.
    uint64_t (*read)(const uint8_t* memory, size_t bytes);
    double (*dots)(int rounds);
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();    // nullptr where not compiled in
const Kernels* kernels_avx512();
const Kernels* kernels_for(int isa);

// static: an inline function shared between differently compiled files could carry the wrong instructions.
static inline size_t row_stride_bytes(int kind, int k) {
    switch (kind) {
        case CG_ROWS_Q8: return size_t(k) / CG_GROUP * sizeof(cg_q8_group);
        case CG_ROWS_BF16: return size_t(k) * 2;
        default: return size_t(k) * 4;
    }
}

}  // namespace callgate
