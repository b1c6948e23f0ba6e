#include "quantize.h"

#include <cmath>
#include <limits>

#include "format.h"

namespace slipstream {

void quantize_row(const float* x, int num_inputs, int8_t* values, float* scales, int32_t* sums) {
    for (int g = 0; g < num_inputs / kGroup; ++g, x += kGroup, values += kGroup) {
        float largest = 0.0f, zeros = 0.0f;
        for (int i = 0; i < kGroup; ++i) {
            const float magnitude = std::fabs(x[i]);
            largest = magnitude > largest ? magnitude : largest;
            zeros += x[i] * 0.0f;  // NaN if one is not finite
        }
        const float inverse = largest > 0.0f && zeros == 0.0f ? 127.0f / largest : 0.0f;
        int32_t sum = 0;
        for (int i = 0; i < kGroup; ++i) {
            // Adding and taking away 1.5 * 2^23 rounds to a whole number, ties to even, on every path alike.
            const float whole = (x[i] * inverse + 12582912.0f) - 12582912.0f;
            const int32_t value = inverse > 0.0f ? static_cast<int32_t>(whole) : 0;
            values[i] = static_cast<int8_t>(value);
            sum += value;
        }
        scales[g] = zeros == 0.0f ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        sums[g] = sum;
    }
}

}  // namespace slipstream
