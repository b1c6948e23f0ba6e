#pragma once

#include <cmath>
#include <limits>

#include "exponential.h"
#include "format.h"
#include "row_functions.h"
#include "sampling_row.h"

namespace slipstream {

template <typename Lanes>
void quantize(const float* x, int size, QuantizedRow to) {
    const Lanes zero = Lanes::each(0.0f);
    for (int g = 0; g < size / kGroup; ++g) {
        const float* from = x + g * kGroup;
        Lanes largest = zero, zeros = zero;
        for (int i = 0; i < kGroup; i += 8) {
            const Lanes part = Lanes::load(from + i);
            largest = Lanes::max(largest, Lanes::abs(part));
            zeros = Lanes::fma(part, zero, zeros);  // NaN if one is not finite
        }
        const float top = largest.largest();
        const bool is_finite = zeros.sum() == 0.0f;
        // The reciprocal of the smallest magnitudes is infinite; they are nothing beside what is added to them.
        const bool is_some = is_finite && top > 1e-30f;
        const Lanes inverse = Lanes::each(is_some ? 127.0f / top : 0.0f);
        Lanes total = zero;
        for (int i = 0; i < kGroup; i += 8) {
            const Lanes whole = is_some ? Lanes::round(Lanes::load(from + i) * inverse) : zero;
            whole.store_bytes(to.values + g * kGroup + i);
            total = total + whole;
        }
        to.scales[g] = is_finite ? (is_some ? top / 127.0f : 0.0f) : std::numeric_limits<float>::quiet_NaN();
        to.sums[g] = static_cast<int32_t>(total.sum());
    }
}

template <typename Lanes>
void rms_norm(const float* x, const float* weight, int size, float eps, float* to) {
    Lanes squares = Lanes::each(0.0f);
    for (int i = 0; i < size; i += 8) {
        const Lanes part = Lanes::load(x + i);
        squares = Lanes::fma(part, part, squares);
    }
    const Lanes factor = Lanes::each(1.0f / std::sqrt(squares.sum() / static_cast<float>(size) + eps));
    for (int i = 0; i < size; i += 8) {
        Lanes part = Lanes::load(x + i) * factor;
        if (weight != nullptr) part = part * Lanes::load(weight + i);
        part.store(to + i);
    }
}

template <typename Lanes>
void silu_mul(const float* x, int size, float* to) {
    const Lanes one = Lanes::each(1.0f), zero = Lanes::each(0.0f);
    for (int i = 0; i < size; i += 8) {
        const Lanes gate = Lanes::load(x + i), up = Lanes::load(x + size + i);
        (gate / (one + exponential(zero - gate)) * up).store(to + i);
    }
}

template <typename Lanes>
void rotate(float* x, const float* cosine, const float* sine, int head_dim) {
    const int half = head_dim / 2;
    for (int i = 0; i < half; i += 8) {
        const Lanes first = Lanes::load(x + i), second = Lanes::load(x + half + i);
        Lanes::fma(second, Lanes::load(sine + i), first * Lanes::load(cosine + i)).store(x + i);
        Lanes::fma(first, Lanes::load(sine + half + i), second * Lanes::load(cosine + half + i)).store(x + half + i);
    }
}

template <typename Lanes>
constexpr RowFunctions row_functions() {
    return {quantize<Lanes>, rms_norm<Lanes>,     silu_mul<Lanes>,
            rotate<Lanes>,   first_argmax<Lanes>, draw<Lanes>};
}

}  // namespace slipstream
