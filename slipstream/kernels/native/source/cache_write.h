// A row's keys and values into a paged cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slipstream {

inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 64u);  // NaN stays one
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// cache: [slots, count], of bfloat16 or float.
inline void write_slot(void* cache, bool is_bfloat16, int64_t slot, const float* from, size_t count) {
    const size_t to = static_cast<size_t>(slot) * count;
    if (is_bfloat16) {
        uint16_t* slots = static_cast<uint16_t*>(cache) + to;
        for (size_t i = 0; i < count; ++i) slots[i] = to_bfloat16(from[i]);
    } else {
        std::memcpy(static_cast<float*>(cache) + to, from, count * sizeof(float));
    }
}

}  // namespace slipstream
