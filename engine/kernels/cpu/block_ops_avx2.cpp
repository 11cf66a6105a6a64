// Block operations for AVX2 with FMA.
#include "attention.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "block_ops_impl.h"
const callgate::BlockOps* callgate::block_ops_avx2() { return &OPS; }
#else
const callgate::BlockOps* callgate::block_ops_avx2() { return nullptr; }
#endif
