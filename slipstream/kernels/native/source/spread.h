// Pieces of work spread over the workers.
#pragma once

#include "paths.h"
#include "workers.h"

namespace slipstream {

template <typename Function>
void each_row(Workers& workers, int num_rows, const Function& function) {
    workers.run([&](int part, int num_parts) {
        const Share rows = share_of(num_rows, part, num_parts);
        for (int row = rows.first; row < rows.last; ++row) function(row);
    });
}

inline void multiply(Workers& workers, Path path, const Weight& weight, const Rows& rows, const Output& output) {
    const LinearPath linear = linear_of(path);
    workers.run([&](int part, int num_parts) {
        const Share blocks = share_of(weight.num_blocks(), part, num_parts);
        linear(weight, rows, blocks.first, blocks.last, output);
    });
}

}  // namespace slipstream
