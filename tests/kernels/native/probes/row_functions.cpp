// The functions of single rows by themselves; in the library they are parts of a pass.
#include "row_functions.h"

using namespace slipstream;

namespace {

const RowFunctions& functions(int is_avx2) {
#if defined(__x86_64__)
    if (is_avx2) return kAvx2RowFunctions;
#endif
    return kPlainRowFunctions;
}

}  // namespace

extern "C" {

void rms_norm(int is_avx2, const float* x, const float* weight, int size, float eps, float* to) {
    functions(is_avx2).rms_norm(x, weight, size, eps, to);
}
void silu_mul(int is_avx2, const float* x, int size, float* to) { functions(is_avx2).silu_mul(x, size, to); }
void rotate(int is_avx2, float* x, const float* cosine, const float* sine, int head_dim) {
    functions(is_avx2).rotate(x, cosine, sine, head_dim);
}
void quantize(int is_avx2, const float* x, int size, int8_t* values, float* scales, int32_t* sums) {
    functions(is_avx2).quantize(x, size, {values, scales, sums});
}

}  // extern "C"
