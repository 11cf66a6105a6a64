// Block operations for AVX-512 with BF16 (VDPBF16PS).
#include "attention.h"

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include "block_ops_impl.h"
const callgate::BlockOps* callgate::block_ops_avx512() { return &OPS; }
#else
const callgate::BlockOps* callgate::block_ops_avx512() { return nullptr; }
#endif
