// Products of quantised rows and weights. Every path gives the same bits: sums inside a group are integers, groups are
// added in order by fused multiply-adds, whatever the batch, the threads and the instructions are.
#pragma once

#include "format.h"

namespace slipstream {

// Where a product goes: [M, N] with `stride` floats from row to row.
struct Output {
    float* data;
    ptrdiff_t stride;
    const float* bias = nullptr;  // [N]; added if it is there
    bool adds = false;            // to what is there already
};

// The outputs of blocks [first, last).
using LinearPath = void (*)(const Weight&, const Rows&, int first, int last, const Output&);

void linear_plain(const Weight&, const Rows&, int first, int last, const Output&);
void linear_avx2(const Weight&, const Rows&, int first, int last, const Output&);
void linear_avx512_vnni(const Weight&, const Rows&, int first, int last, const Output&);

}  // namespace slipstream
