// Linear layers for AVX2 with FMA.
#if defined(__AVX2__) && defined(__FMA__)
#include "linear_impl.h"
const callgate::Kernels* callgate::kernels_avx2() { return &KERNELS; }
#else
#include "linear.h"
const callgate::Kernels* callgate::kernels_avx2() { return nullptr; }
#endif
