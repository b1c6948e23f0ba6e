// Plain weights into records (format.h).
#pragma once

#include <cstdint>

#include "format.h"

namespace slipstream {

// q [N, K] (0 .. 15), scales and minima [N, K / 32] in half precision.
void pack_four(const uint8_t* q, const uint16_t* scales, const uint16_t* minima, int num_outputs, int num_inputs,
               uint8_t* records);

// q [N, K] (-127 .. 127), scales [N, K / 32] in half precision.
void pack_eight(const int8_t* q, const uint16_t* scales, int num_outputs, int num_inputs, uint8_t* records);

}  // namespace slipstream
