// Half precision to float, as F16C does it.
#pragma once

#include <cstdint>
#include <cstring>

namespace slipstream {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u, bits;
    if (exponent == 31u) {
        bits = sign | 0x7f800000u | (fraction << 13);
    } else if (exponent != 0u) {
        bits = sign | ((exponent + 112u) << 23) | (fraction << 13);
    } else if (fraction == 0u) {
        bits = sign;
    } else {  // subnormal: shift until the leading one is in its place
        exponent = 113u;
        while ((fraction & 1024u) == 0u) {
            fraction <<= 1;
            --exponent;
        }
        bits = sign | (exponent << 23) | ((fraction & 1023u) << 13);
    }
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The half-precision number of an output, in a record of format.h that begins with them.
inline float half_at(const uint8_t* record, int output) {
    uint16_t bits;
    std::memcpy(&bits, record + 2 * output, sizeof bits);
    return half_to_float(bits);
}

}  // namespace slipstream
