// The token of a row of logits: the likeliest, or argmax((logit - top) / T + Gumbel noise), the lowest id among equals.
//
// As in slipstream/sampling/draw.py, whose tokens these are, float64 numbers decide, and lanes only narrow down what may
// win, with margins far above any rounding error. A draw is the same operations in the same order there and here, with log
// and log1p from the one C library of the process.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "exponential.h"

namespace slipstream {

constexpr double kMargin = 1e-4;            // relative, on the bound of w; the float error of p is below 1e-5
constexpr double kSlack = 0x1p-22;          // absolute, on w; its float error is below 2^-24
constexpr double kMinTemperature = 1e-30;   // for the narrowing only: a higher one just keeps more tokens

// See slipstream/sampling/noise.py.
static inline uint64_t hash_token(uint64_t constant, uint64_t key) {
    uint64_t value = constant ^ key;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    return (value ^ (value >> 27)) * 0x94D049BB133111EBu;
}

// -log(u), u = 1 - w, w = (2 k + 1) / 2^53 with k + 2^51 = the hash's upper 52 bits: all exact but for the logarithm.
static inline double exponential_noise(uint64_t hash) {
    const double w = static_cast<double>(static_cast<int64_t>(hash) >> 12) * 0x1p-52 + (0.5 + 0x1p-53);
    return -std::log1p(-w);
}

// The first of the largest of `size` logits; -1 if one of them is not finite.
template <typename Lanes>
int first_argmax(const float* logits, int size) {
    constexpr int kSearched = 256;  // logits whose maximum is taken at once, and looked up when it stands
    const Lanes zero = Lanes::each(0.0f);
    Lanes zeros[4] = {zero, zero, zero, zero};  // NaN if a logit is not finite
    float top = -std::numeric_limits<float>::infinity();
    int found = 0;
    const int body = size / kSearched * kSearched;
    for (int from = 0; from < body; from += kSearched) {
        Lanes largest[4];
        for (int n = 0; n < 4; ++n) largest[n] = Lanes::load(logits + from + 8 * n);
        for (int i = from; i < from + kSearched; i += 32) {
            for (int n = 0; n < 4; ++n) {
                const Lanes part = Lanes::load(logits + i + 8 * n);
                largest[n] = Lanes::max(part, largest[n]);
                zeros[n] = Lanes::fma(part, zero, zeros[n]);
            }
        }
        const float here = Lanes::max(Lanes::max(largest[0], largest[1]), Lanes::max(largest[2], largest[3])).largest();
        if (here > top) top = here, found = from;
    }
    float sum = ((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])).sum();
    for (int i = body; i < size; ++i) {
        if (logits[i] > top) top = logits[i], found = i;
        sum += logits[i] * 0.0f;
    }
    if (!(sum == 0.0f)) return -1;
    while (logits[found] != top) ++found;
    return found;
}

// One row's draw. `top` is where its largest logit is; all are finite; the temperature is above 0.
template <typename Lanes>
class Draw {
public:
    Draw(const float* logits, int size, int top, double temperature, uint64_t key, const uint64_t* constants)
        : logits_(logits), constants_(constants), key_(key), size_(size), top_(logits[top]), temperature_(temperature) {
        winner_ = top;
        best_ = score(top);
    }

    int winner() {
        // A token wins only if E < p exp(-best), where p = exp((logit - top) / T); and E > w.
        const Lanes top = Lanes::each(top_);
        const Lanes inverse = Lanes::each(static_cast<float>(1.0 / std::max(temperature_, kMinTemperature)));
        const Lanes offset = Lanes::each(static_cast<float>((kSlack - 0.5) * 0x1p32));
        const int body = size_ / 8 * 8;
        Lanes limit = scaled_limit();
        for (int i = 0; i < body; i += 8) {
            float survivals[8];  // 2^32 (w - 0.5)
            for (int j = 0; j < 8; ++j) {
                survivals[j] = static_cast<float>(static_cast<int32_t>(hash_token(constants_[i + j], key_) >> 32));
            }
            const Lanes p = exponential((Lanes::load(logits_ + i) - top) * inverse);
            const Lanes room = Lanes::fma(p, limit, offset) - Lanes::load(survivals);
            if (room.largest() < 0.0f) continue;
            float rooms[8];
            room.store(rooms);
            for (int j = 0; j < 8; ++j) {
                if (rooms[j] >= 0.0f && challenge(i + j)) limit = scaled_limit();
            }
        }
        for (int i = body; i < size_; ++i) challenge(i);
        return winner_;
    }

private:
    double score(int token) const {
        const double noise = -std::log(exponential_noise(hash_token(constants_[token], key_)));
        return (static_cast<double>(logits_[token]) - static_cast<double>(top_)) / temperature_ + noise;
    }

    bool challenge(int token) {
        const double found = score(token);
        if (found < best_ || (found == best_ && token >= winner_)) return false;
        winner_ = token;
        best_ = found;
        return true;
    }

    Lanes scaled_limit() const { return Lanes::each(static_cast<float>(std::exp(-best_) * (1.0 + kMargin) * 0x1p32)); }

    const float* logits_;
    const uint64_t* constants_;
    uint64_t key_;
    int size_;
    float top_;
    double temperature_;
    int winner_;
    double best_;
};

template <typename Lanes>
int draw(const float* logits, int size, int top, double temperature, uint64_t key, const uint64_t* constants) {
    return Draw<Lanes>(logits, size, top, temperature, key, constants).winner();
}

}  // namespace slipstream
