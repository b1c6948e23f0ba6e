// The loop around every path's inner tile: blocks of outputs, then tiles of rows, so that a block's weights stay in the
// nearest cache while all rows pass.
#pragma once

#include "linear.h"

namespace slipstream {

// Tile::four<R> and Tile::eight<R> give R rows of one block: sums[R][16].
template <typename Tile, int R>
void tile_rows(const Weight& weight, const Rows& rows, int first_row, int block, const Output& output) {
    alignas(64) float sums[R * kBlock];
    const int num_groups = weight.num_groups();
    const size_t start = static_cast<size_t>(first_row) * static_cast<size_t>(num_groups);
    const Rows part{rows.values + start * kGroup, rows.scales + start, rows.sums + start, R};
    if (weight.bits == Bits::four) {
        Tile::template four<R>(weight.block(block), part, num_groups, sums);
    } else {
        Tile::template eight<R>(weight.block(block), part, num_groups, sums);
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

template <typename Tile>
void linear_by_tiles(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    for (int block = first; block < last; ++block) {
        int row = 0;
        for (; row + 4 <= rows.num_rows; row += 4) tile_rows<Tile, 4>(weight, rows, row, block, output);
        switch (rows.num_rows - row) {
            case 3: tile_rows<Tile, 3>(weight, rows, row, block, output); break;
            case 2: tile_rows<Tile, 2>(weight, rows, row, block, output); break;
            case 1: tile_rows<Tile, 1>(weight, rows, row, block, output); break;
            default: break;
        }
    }
}

}  // namespace slipstream
