// The path of any processor, and the one that says in plain words what the others compute.
#include <cmath>

#include "half.h"
#include "linear_tiles.h"

namespace slipstream {
namespace {

int low(uint8_t byte) { return byte & 15; }
int high(uint8_t byte) { return byte >> 4; }

struct PlainTile {
    static constexpr int kMaxRows = 4;

    template <int R>
    static void four(const uint8_t* record, TileRows<R> rows, float* sums) {
        for (int i = 0; i < R * kBlock; ++i) sums[i] = 0.0f;
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::four), rows.step()) {
            const uint8_t* bytes = record + 2 * kHalves;
            for (int row = 0; row < R; ++row) {
                const float scale = rows.scales[row], total = rows.totals[row];
                for (int o = 0; o < kBlock; ++o) {
                    int dot = 0;
                    for (int p = 0; p < 4; ++p) {
                        const int8_t* a = rows.inputs(2 * p, row);
                        const int8_t* b = rows.inputs(2 * p + 1, row);
                        for (int i = 0; i < 4; ++i) {
                            const uint8_t byte = bytes[64 * p + 4 * o + i];
                            dot += low(byte) * a[i] + high(byte) * b[i];
                        }
                    }
                    float& sum = sums[row * kBlock + o];
                    sum = std::fma(static_cast<float>(dot), half_at(record, o) * scale, sum);
                    sum = std::fma(half_at(record + kHalves, o), total, sum);
                }
            }
        }
    }

    template <int R>
    static void eight(const uint8_t* record, TileRows<R> rows, float* sums) {
        for (int i = 0; i < R * kBlock; ++i) sums[i] = 0.0f;
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::eight), rows.step()) {
            const uint8_t* bytes = record + kHalves;
            for (int row = 0; row < R; ++row) {
                const float scale = rows.scales[row];
                for (int o = 0; o < kBlock; ++o) {
                    int dot = rows.offsets[row];
                    for (int p = 0; p < 8; ++p) {
                        const int8_t* a = rows.inputs(p, row);
                        for (int i = 0; i < 4; ++i) dot += bytes[64 * p + 4 * o + i] * a[i];
                    }
                    float& sum = sums[row * kBlock + o];
                    sum = std::fma(static_cast<float>(dot), half_at(record, o) * scale, sum);
                }
            }
        }
    }
};

}  // namespace

void linear_plain(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    linear_by_tiles<PlainTile>(weight, rows, first, last, output);
}

}  // namespace slipstream
