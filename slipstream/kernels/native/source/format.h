// Weights in groups of 32 inputs, as the kernels read them.
//
// A weight [N, K] is cut into blocks of 16 outputs; K is a multiple of 32, N is padded with zeros to whole blocks. A block
// holds its groups one after the other, each of them one record:
//
//   4 bits:  16 scales, 16 minima (both half precision), 4 x 64 bytes.  w = scale * q + minimum, q = 0 .. 15.
//            Byte 4 o + i of the p-th 64 bytes: input 8 p + i of output o in the low half, 8 p + 4 + i in the high half.
//   8 bits:  16 scales, 8 x 64 bytes.  w = scale * (q - 128), q = 1 .. 255.
//            Byte 4 o + i of the p-th 64 bytes: input 4 p + i of output o.
//
// So 64 bytes are four inputs of all 16 outputs: what one integer dot-product instruction takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

constexpr int kGroup = 32;
constexpr int kBlock = 16;
constexpr size_t kHalves = 2 * kBlock;  // bytes of one half-precision number per output

enum class Bits : int { four = 4, eight = 8 };

constexpr size_t record_bytes(Bits bits) {
    return bits == Bits::four ? 2 * kHalves + kGroup * kBlock / 2 : kHalves + kGroup * kBlock;
}

struct Weight {
    const uint8_t* records;
    Bits bits;
    int num_outputs;
    int num_inputs;

    int num_groups() const { return num_inputs / kGroup; }
    int num_blocks() const { return (num_outputs + kBlock - 1) / kBlock; }
    const uint8_t* block(int index) const {
        return records + record_bytes(bits) * static_cast<size_t>(num_groups()) * static_cast<size_t>(index);
    }
};

// Rows of activations in groups of 32: a = scale * q, q = -127 .. 127. `sum` is that of the group's q.
struct Rows {
    const int8_t* values;   // [M, K]
    const float* scales;    // [M, K / 32]
    const int32_t* sums;    // [M, K / 32]
    int num_rows;
};

}  // namespace slipstream
