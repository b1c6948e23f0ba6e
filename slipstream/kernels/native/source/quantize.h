// Rows of floats to groups of 32 signed bytes.
#pragma once

#include <cstdint>

namespace slipstream {

// One row [K] into values [K], scales and sums [K / 32]. The largest magnitude of a group becomes 127, others are rounded
// to the nearest, ties to even. A group that holds a NaN or infinity gets a NaN scale, so that it shows in the result.
void quantize_row(const float* x, int num_inputs, int8_t* values, float* scales, int32_t* sums);

}  // namespace slipstream
