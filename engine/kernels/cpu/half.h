// Scalar float16 and bfloat16 conversions that need no instruction-set flags. Round to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

namespace callgate {
namespace {

inline float bits_to_float(uint32_t b) {
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}

inline uint32_t float_to_bits(float f) {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    return b;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float f = float(mantissa) * (1.0f / 16777216.0f);  // exact
    return sign ? -f : f;
}

inline uint16_t float_to_half(float f) {
    const uint32_t b = float_to_bits(f), magnitude = b & 0x7fffffffu;
    const uint16_t sign = uint16_t((b >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at 2^-24
        const float shifted = bits_to_float(magnitude) + 0.5f;
        return uint16_t(sign | (float_to_bits(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

inline float bf16_to_float(uint16_t h) { return bits_to_float(uint32_t(h) << 16); }

inline uint16_t load_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

inline void store_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

}  // namespace
}  // namespace callgate
