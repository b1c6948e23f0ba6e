// Rows of activations on their way into a product, in scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.h"
#include "row_functions.h"

namespace slipstream {

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr size_t place(int row, int width) { return static_cast<size_t>(row) * static_cast<size_t>(width); }

// Of rows of floats.
constexpr size_t float_bytes(int num_rows, int width) { return aligned(place(num_rows, width) * sizeof(float)); }

struct QuantizedBuffer {
    int8_t* values;
    float* scales;
    int32_t* sums;
    int num_rows, width;

    static size_t bytes(int num_rows, int width) {
        const size_t groups = place(num_rows, width / kGroup);
        return aligned(groups * kGroup) + 2 * aligned(groups * sizeof(float));
    }
    QuantizedBuffer(uint8_t* memory, int num_rows, int width) : num_rows(num_rows), width(width) {
        const size_t groups = place(num_rows, width / kGroup);
        values = reinterpret_cast<int8_t*>(memory);
        scales = reinterpret_cast<float*>(memory + aligned(groups * kGroup));
        sums = reinterpret_cast<int32_t*>(memory + aligned(groups * kGroup) + aligned(groups * sizeof(float)));
    }
    // Where a row goes, from input `first` on.
    QuantizedRow row(int index, int first = 0) const {
        const size_t group = place(index, width / kGroup) + static_cast<size_t>(first / kGroup);
        return {values + group * kGroup, scales + group, sums + group};
    }
    Rows rows() const { return {values, scales, sums, num_rows}; }
};

}  // namespace slipstream
