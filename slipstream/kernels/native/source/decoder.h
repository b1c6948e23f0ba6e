// All layers of a decoder (Llama, Qwen2 and Qwen3 shapes) over the rows of a step, without a call from outside between.
#pragma once

#include <cstdint>

#include "attention.h"
#include "format.h"
#include "workers.h"

namespace slipstream {

// One layer, with the projections that share an input fused; norms and biases are floats, and null where there are none.
struct Layer {
    const float* attention_norm;  // [hidden]
    const uint8_t* qkv;           // [(H + 2 KV) * D, hidden]
    const float* qkv_bias;        // [(H + 2 KV) * D]
    const float* qk_norm;         // [H + KV, D]
    const uint8_t* output;        // [hidden, H * D]
    const float* mlp_norm;        // [hidden]
    const uint8_t* gate_up;       // [2 * intermediate, hidden]
    const uint8_t* down;          // [hidden, intermediate]
    void* cache;                  // [blocks, block_size, 2, KV, D]
    float* tap;                   // where the layer's output goes too, [N, hidden]; null for nowhere
    int32_t qkv_bits, output_bits, gate_up_bits, down_bits;
};

struct Shape {
    int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, is_bfloat16_cache;
    float rms_norm_eps;
};

struct StepRows {
    int32_t num_rows, num_requests, block_size, is_causal;
    const int64_t* slots;      // [N]; where each row's key and value are written
    const float* cosine;       // [N, D]
    const float* sine;         // [N, D]; the minus sign of the half-split rotation is folded in
    const int32_t* requests;   // [R, 5]: RequestRows
    const int32_t* block_ids;  // the requests' block tables, one after the other
};

// Bytes of scratch memory for so many rows.
int64_t scratch_bytes(const Shape& shape, int num_rows);

// x [N, hidden]: the embeddings on entry, the last layer's output on return (before the final norm).
void run_layers(Workers& workers, int path, const Shape& shape, const Layer* layers, const StepRows& step, float* x,
                uint8_t* scratch);

}  // namespace slipstream
