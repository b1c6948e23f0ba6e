// Products of quantised rows and weights. Every path gives the same bits: sums inside a group are integers, groups are
// added in order by fused multiply-adds, whatever the batch, the threads and the instructions are.
#pragma once

#include "format.h"

namespace slipstream {

// y[m, n] for the outputs of blocks [first, last): [M, N] with `stride` floats from row to row.
using LinearPath = void (*)(const Weight&, const Rows&, int first, int last, float* y, ptrdiff_t stride);

void linear_plain(const Weight&, const Rows&, int first, int last, float* y, ptrdiff_t stride);
void linear_avx2(const Weight&, const Rows&, int first, int last, float* y, ptrdiff_t stride);
void linear_avx512_vnni(const Weight&, const Rows&, int first, int last, float* y, ptrdiff_t stride);

}  // namespace slipstream
