// The loop around every path's inner tile: blocks of outputs, then tiles of rows, so that a block's weights stay in the
// nearest cache while all rows pass.
#pragma once

#include <cstring>
#include <memory>
#include <type_traits>

#include "linear.h"

namespace slipstream {
namespace {  // of its own in every path: the compiler uses the path's instructions in all of it

// R rows side by side, as the inner loops read them: everything is at a fixed distance from one address.
template <int R>
struct TileRows {
    const int8_t* values;    // [groups, 8, R, 4]: four inputs of each row, then the next four
    const float* scales;     // [groups, R]
    const float* totals;     // [groups, R]: scale by the sum of the group's values
    const int32_t* offsets;  // [groups, R]: what 128 too much in every weight adds to a dot, negated
    int num_groups;

    // The next group's.
    void step() {
        values += kGroup * R;
        scales += R;
        totals += R;
        offsets += R;
    }
    // Of the first group: four inputs of a row.
    const int8_t* inputs(int four, int row) const { return values + (four * R + row) * 4; }
};

// Bytes that a tile of R rows takes.
inline size_t tile_bytes(int num_rows, int num_groups) {
    return static_cast<size_t>(num_rows) * static_cast<size_t>(num_groups) * (kGroup + 3 * sizeof(float));
}

template <int R>
TileRows<R> tile_at(uint8_t* memory, int num_groups) {
    const size_t groups = static_cast<size_t>(R) * static_cast<size_t>(num_groups);
    float* scales = reinterpret_cast<float*>(memory + groups * kGroup);
    return {reinterpret_cast<int8_t*>(memory), scales, scales + groups,
            reinterpret_cast<int32_t*>(scales + 2 * groups), num_groups};
}

template <int R>
void lay_out(const Rows& rows, int first_row, int num_groups, uint8_t* memory) {
    TileRows<R> tile = tile_at<R>(memory, num_groups);
    for (int g = 0; g < num_groups; ++g, tile.step()) {
        for (int row = 0; row < R; ++row) {
            const size_t group = static_cast<size_t>(first_row + row) * static_cast<size_t>(num_groups) + g;
            const int8_t* from = rows.values + group * kGroup;
            for (int four = 0; four < 8; ++four) {
                std::memcpy(const_cast<int8_t*>(tile.inputs(four, row)), from + 4 * four, 4);
            }
            const float scale = rows.scales[group];
            const int32_t sum = rows.sums[group];
            const_cast<float*>(tile.scales)[row] = scale;
            const_cast<float*>(tile.totals)[row] = scale * static_cast<float>(sum);
            const_cast<int32_t*>(tile.offsets)[row] = -128 * sum;
        }
    }
}

// Tile::four<R> and Tile::eight<R> give R rows of one block: sums[R][16].
template <typename Tile, int R>
void run_tile(const Weight& weight, uint8_t* memory, int first_row, int block, const Output& output) {
    alignas(64) float sums[R * kBlock];
    const TileRows<R> rows = tile_at<R>(memory, weight.num_groups());
    if (weight.bits == Bits::four) {
        Tile::template four<R>(weight.block(block), rows, sums);
    } else {
        Tile::template eight<R>(weight.block(block), rows, sums);
    }
    const int first = block * kBlock;
    const int width = weight.num_outputs - first < kBlock ? weight.num_outputs - first : kBlock;
    for (int row = 0; row < R; ++row) {
        float* out = output.data + (first_row + row) * output.stride + first;
        for (int o = 0; o < width; ++o) {
            float sum = sums[row * kBlock + o];
            if (output.bias != nullptr) sum += output.bias[first + o];
            out[o] = output.adds ? out[o] + sum : sum;
        }
    }
}

// Calls `visit` with the number of rows that are left, as a constant.
template <int R, typename Visit>
void with_count(int num_rows, const Visit& visit) {
    if (num_rows == R) {
        visit(std::integral_constant<int, R>());
    } else if constexpr (R > 1) {
        with_count<R - 1>(num_rows, visit);
    }
}

template <typename Tile>
void linear_by_tiles(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    constexpr int whole = Tile::kMaxRows;
    const int num_groups = weight.num_groups(), num_whole = rows.num_rows / whole, num_left = rows.num_rows % whole;
    const size_t size = tile_bytes(whole, num_groups);
    static thread_local std::unique_ptr<uint8_t[]> memory;
    static thread_local size_t room = 0;
    const size_t needed = size * static_cast<size_t>(num_whole + 1);
    if (room < needed) {
        memory.reset(new uint8_t[needed]);
        room = needed;
    }
    uint8_t* const tiles = memory.get();
    uint8_t* const left = tiles + size * static_cast<size_t>(num_whole);
    for (int i = 0; i < num_whole; ++i) lay_out<whole>(rows, i * whole, num_groups, tiles + size * i);
    with_count<whole - 1>(num_left, [&](auto count) { lay_out<count>(rows, num_whole * whole, num_groups, left); });
    for (int block = first; block < last; ++block) {
        for (int i = 0; i < num_whole; ++i) run_tile<Tile, whole>(weight, tiles + size * i, i * whole, block, output);
        with_count<whole - 1>(num_left, [&](auto count) {
            run_tile<Tile, count>(weight, left, num_whole * whole, block, output);
        });
    }
}

}  // namespace
}  // namespace slipstream
