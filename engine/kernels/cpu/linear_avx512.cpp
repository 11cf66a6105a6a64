// Linear layers for AVX-512 with VNNI and BF16.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "linear_impl.h"
const callgate::Kernels* callgate::kernels_avx512() { return &KERNELS; }
#else
#include "linear.h"
const callgate::Kernels* callgate::kernels_avx512() { return nullptr; }
#endif
