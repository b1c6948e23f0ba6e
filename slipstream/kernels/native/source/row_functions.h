// What happens to single rows between products and after them. Sums run over eight lanes in order, so a row's bits are its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// A quantised row (quantize.h): values [K], scales and sums [K / 32].
struct QuantizedRow {
    int8_t* values;
    float* scales;
    int32_t* sums;
};

struct RowFunctions {
    // x [K] to groups of signed bytes. The largest magnitude of a group becomes 127, others are rounded to the nearest,
    // ties to even. A group that holds a NaN or infinity gets a NaN scale, so that it shows in the result.
    void (*quantize)(const float* x, int size, QuantizedRow to);
    // x / sqrt(mean(x^2) + eps) * weight, into `to` [K]; weight may be null.
    void (*rms_norm)(const float* x, const float* weight, int size, float eps, float* to);
    // silu(x[:K]) * x[K:] into `to` [K], which may be x itself.
    void (*silu_mul)(const float* x, int size, float* to);
    // Rotate a head in place: half-split layout; `sine` has the minus sign of the first half folded in.
    void (*rotate)(float* x, const float* cosine, const float* sine, int head_dim);
    // Sampling (sampling_row.h): the first of the largest logits, or -1; and a draw, given where the largest is.
    int (*first_argmax)(const float* logits, int size);
    int (*draw)(const float* logits, int size, int top, double temperature, uint64_t key, const uint64_t* constants);
};

extern const RowFunctions kPlainRowFunctions;
extern const RowFunctions kAvx2RowFunctions;

}  // namespace slipstream
