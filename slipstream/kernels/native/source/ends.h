// Both ends of a decoder: rows of the embedding, and the final norm with the output projection.
#pragma once

#include <cstdint>

#include "format.h"
#include "linear.h"
#include "workers.h"

namespace slipstream {

// Row `ids[i]` of a weight [V, hidden] to x [N, hidden].
void embed(const Weight& weight, const int64_t* ids, int num_rows, float* x);

// x [N, hidden] by its norm and a weight: what scratch memory that takes, and the norm alone.
int64_t project_bytes(int num_rows, int hidden_size);
void project(Workers& workers, int path, const Weight& weight, const float* norm, float eps, const float* x, int num_rows,
             const Output& output, uint8_t* scratch);
void normalize(Workers& workers, int path, const float* x, const float* norm, int num_rows, int hidden_size, float eps,
               float* to);

}  // namespace slipstream
