// Eight floats at a time, in plain words. Every operation rounds once, as the vector instructions do, so what is written
// with lanes has the same bits on every path.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace slipstream {

struct PlainLanes {
    float of[8];

    static PlainLanes each(float value) { return made([&](int) { return value; }); }
    static PlainLanes load(const float* from) { return made([&](int i) { return from[i]; }); }
    // Of sixteen bfloat16 numbers, those at even places, and those at odd ones.
    static PlainLanes load_even(const uint16_t* from) {
        return made([&](int i) { return from_bfloat16(from[2 * i]); });
    }
    static PlainLanes load_odd(const uint16_t* from) {
        return made([&](int i) { return from_bfloat16(from[2 * i + 1]); });
    }
    void store(float* to) const { std::memcpy(to, of, sizeof of); }
    void store_bytes(int8_t* to) const {  // of whole numbers
        for (int i = 0; i < 8; ++i) to[i] = static_cast<int8_t>(of[i]);
    }

    friend PlainLanes operator+(const PlainLanes& a, const PlainLanes& b) {
        return made([&](int i) { return a.of[i] + b.of[i]; });
    }
    friend PlainLanes operator-(const PlainLanes& a, const PlainLanes& b) {
        return made([&](int i) { return a.of[i] - b.of[i]; });
    }
    friend PlainLanes operator*(const PlainLanes& a, const PlainLanes& b) {
        return made([&](int i) { return a.of[i] * b.of[i]; });
    }
    friend PlainLanes operator/(const PlainLanes& a, const PlainLanes& b) {
        return made([&](int i) { return a.of[i] / b.of[i]; });
    }
    // a * b + c, rounded once.
    static PlainLanes fma(const PlainLanes& a, const PlainLanes& b, const PlainLanes& c) {
        return made([&](int i) { return std::fma(a.of[i], b.of[i], c.of[i]); });
    }
    // The second where one is no number, as x86 has it.
    static PlainLanes max(const PlainLanes& a, const PlainLanes& b) {
        return made([&](int i) { return a.of[i] > b.of[i] ? a.of[i] : b.of[i]; });
    }
    static PlainLanes abs(const PlainLanes& a) {
        return made([&](int i) { return std::fabs(a.of[i]); });
    }
    // To a whole number, ties to even.
    static PlainLanes round(const PlainLanes& a) {
        return made([&](int i) { return std::nearbyint(a.of[i]); });
    }
    // a * 2^n for whole n that keep it normal.
    static PlainLanes scaled(const PlainLanes& a, const PlainLanes& n) {
        return made([&](int i) {
            int32_t bits;
            std::memcpy(&bits, &a.of[i], sizeof bits);
            bits += static_cast<int32_t>(n.of[i]) * (1 << 23);
            float value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        });
    }
    // a where `tested` > limit, else 0.
    static PlainLanes where_above(const PlainLanes& tested, const PlainLanes& limit, const PlainLanes& a) {
        return made([&](int i) { return tested.of[i] > limit.of[i] ? a.of[i] : 0.0f; });
    }
    // a in the first n lanes, `other` in the rest.
    static PlainLanes first(int n, const PlainLanes& a, const PlainLanes& other) {
        return made([&](int i) { return i < n ? a.of[i] : other.of[i]; });
    }
    float sum() const { return ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7])); }
    float largest() const {
        float found = of[0];
        for (int i = 1; i < 8; ++i) found = of[i] > found ? of[i] : found;
        return found;
    }
    // Sums of eight, one per lane.
    static PlainLanes sums(const PlainLanes* a) {
        return made([&](int i) { return a[i].sum(); });
    }

private:
    static float from_bfloat16(uint16_t half) {
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    template <typename Function>
    static PlainLanes made(Function function) {
        PlainLanes result;
        for (int i = 0; i < 8; ++i) result.of[i] = function(i);
        return result;
    }
};

}  // namespace slipstream
