// What the package calls, by ctypes. Pointers are to contiguous memory of the caller; nothing is kept of them.
#include <new>

#include "linear.h"
#include "pack.h"
#include "quantize.h"
#include "workers.h"

using namespace slipstream;

namespace {

enum Path : int { plain = 0, avx2 = 1, avx512_vnni = 2 };

LinearPath linear_of(int path) {
    switch (path) {
#if defined(__x86_64__)
        case avx512_vnni: return linear_avx512_vnni;
        case avx2: return linear_avx2;
#endif
        default: return linear_plain;
    }
}

}  // namespace

extern "C" {

// The fastest path that this processor has.
int slipstream_best_path() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        return avx512_vnni;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return avx2;
#endif
    return plain;
}

void* slipstream_workers(int num_threads) { return new (std::nothrow) Workers(num_threads); }
void slipstream_end_workers(void* workers) { delete static_cast<Workers*>(workers); }

int64_t slipstream_packed_bytes(int bits, int num_outputs, int num_inputs) {
    const Weight weight{nullptr, static_cast<Bits>(bits), num_outputs, num_inputs};
    return static_cast<int64_t>(record_bytes(weight.bits)) * weight.num_groups() * weight.num_blocks();
}

void slipstream_pack_four(const uint8_t* q, const uint16_t* scales, const uint16_t* minima, int num_outputs,
                          int num_inputs, uint8_t* records) {
    pack_four(q, scales, minima, num_outputs, num_inputs, records);
}

void slipstream_pack_eight(const int8_t* q, const uint16_t* scales, int num_outputs, int num_inputs, uint8_t* records) {
    pack_eight(q, scales, num_outputs, num_inputs, records);
}

void slipstream_quantize(void* workers, const float* x, int num_rows, int num_inputs, int8_t* values, float* scales,
                         int32_t* sums) {
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        const Share rows = share_of(num_rows, part, num_parts);
        const size_t num_groups = static_cast<size_t>(num_inputs / kGroup);
        for (int row = rows.first; row < rows.last; ++row) {
            const size_t first = static_cast<size_t>(row) * num_groups;
            quantize_row(x + first * kGroup, num_inputs, values + first * kGroup, scales + first, sums + first);
        }
    });
}

void slipstream_linear(void* workers, int path, const uint8_t* records, int bits, int num_outputs, int num_inputs,
                       const int8_t* values, const float* scales, const int32_t* sums, int num_rows, float* y,
                       int64_t stride) {
    const Weight weight{records, static_cast<Bits>(bits), num_outputs, num_inputs};
    const Rows rows{values, scales, sums, num_rows};
    const LinearPath linear = linear_of(path);
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        const Share blocks = share_of(weight.num_blocks(), part, num_parts);
        linear(weight, rows, blocks.first, blocks.last, y, static_cast<ptrdiff_t>(stride));
    });
}

}  // extern "C"
