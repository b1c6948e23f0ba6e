// What the package calls, by ctypes. Pointers are to contiguous memory of the caller; nothing is kept of them.
#include <algorithm>
#include <new>
#include <vector>

#include "attention.h"
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

// Keys that a tile of rows reads, times its rows; and all tiles of a request.
int64_t tile_keys(const RequestRows& request, int first, int count) {
    return static_cast<int64_t>(request.first_position - request.first_key + first + count) * count;
}

int64_t keys_of(const RequestRows& request) {
    int64_t total = 0;
    for (int first = 0; first < request.num_rows; first += kRowTile) {
        total += tile_keys(request, first, std::min(kRowTile, request.num_rows - first));
    }
    return total;
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

// One layer of a step. query, output: [N, num_heads, head_dim] floats.
void slipstream_attend(void* workers, int path, const int32_t* requests, int num_requests, const int32_t* block_ids,
                       int block_size, int num_heads, int num_kv_heads, int head_dim, int is_causal, const void* cache,
                       int is_bfloat16, const float* query, int64_t stride, float* output) {
    static_assert(sizeof(RequestRows) == 5 * sizeof(int32_t));
    const AttentionStep step{reinterpret_cast<const RequestRows*>(requests),
                             block_ids,
                             num_requests,
                             block_size,
                             num_heads,
                             num_kv_heads,
                             head_dim,
                             is_causal != 0};
    const LayerCache layer{cache, is_bfloat16 != 0};
    const AttentionPath attend = path == plain ? attend_plain : attend_avx2;
    // Work is shared by keys that are seen; a tile is the smallest piece.
    int64_t total = 0;
    for (int i = 0; i < num_requests; ++i) total += keys_of(step.requests[i]);
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        std::vector<float> scratch(attention_scratch(step));
        const int64_t begin = total * num_kv_heads * part / num_parts, end = total * num_kv_heads * (part + 1) / num_parts;
        int64_t at = 0;
        for (int i = 0; i < num_requests; ++i) {
            const RequestRows& request = step.requests[i];
            for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
                for (int first = 0; first < request.num_rows; first += kRowTile) {
                    const int count = std::min(kRowTile, request.num_rows - first);
                    if (at >= begin && at < end) {
                        attend(step, request, first, count, kv_head, layer, query, static_cast<ptrdiff_t>(stride), output,
                               scratch.data());
                    }
                    at += tile_keys(request, first, count);
                }
            }
        }
    });
}

}  // extern "C"
