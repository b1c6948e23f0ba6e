// Attention of a whole step, shared out by the keys that are read.
#pragma once

#include "attention.h"
#include "workers.h"

namespace slipstream {

// query, output: [N, num_heads, head_dim], the query with `stride` floats from row to row.
void attend(Workers& workers, AttentionPath path, const AttentionStep& step, const LayerCache& cache, const float* query,
            ptrdiff_t stride, float* output);

}  // namespace slipstream
