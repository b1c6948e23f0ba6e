// The AVX-512 path and the plain one, side by side.
#include "linear.h"

using namespace slipstream;

extern "C" void multiply(int is_vnni, const uint8_t* records, int bits, int num_outputs, int num_inputs,
                         const int8_t* values, const float* scales, const int32_t* sums, int num_rows, const float* bias,
                         int adds, float* y, long stride) {
    const Weight weight{records, static_cast<Bits>(bits), num_outputs, num_inputs};
    const auto path = is_vnni ? linear_avx512_vnni : linear_plain;
    path(weight, {values, scales, sums, num_rows}, 0, weight.num_blocks(), {y, stride, bias, adds != 0});
}
