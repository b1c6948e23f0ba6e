// What a block drafter runs beside its layers (decoder.h): keys and values of the target's tokens, and the draws of a block.
#pragma once

#include <cstdint>

#include "format.h"
#include "workers.h"

namespace slipstream {

struct ContextShape {
    int32_t num_rows, num_taps, target_size, hidden_size, num_layers, num_kv_heads, head_dim, is_bfloat16_cache, fc_bits;
    float rms_norm_eps;
};

struct ContextLayer {
    const uint8_t* key_value;  // [2 * KV * D, hidden]
    const float* key_norm;     // [D]; null for none
    void* cache;               // [blocks, block_size, 2, KV, D]
    int32_t bits;
};

struct ContextRows {
    const float* const* taps;  // of each tapped layer, [N, target_size]
    const int64_t* slots;      // [N]
    const float* cosine;       // [N, D]
    const float* sine;         // [N, D]; see StepRows
};

// Bytes of scratch memory.
int64_t context_bytes(const ContextShape& shape);

// fc: [hidden, taps * target_size]; hidden_norm: [hidden].
void write_context(Workers& workers, int path, const ContextShape& shape, const uint8_t* fc, const float* hidden_norm,
                   const ContextLayer* layers, const ContextRows& rows, uint8_t* scratch);

struct BlockShape {
    int32_t num_requests, num_drafts, hidden_size, vocab_size, head_bits;
    int32_t rank, bias_bits;             // of the Markov head; rank 0 for none
    int32_t has_confidence, sees_token;  // whether the confidence head sees the token before
    float confidence_bias;
};

struct BlockWeights {
    const uint8_t* head;        // [V_d, hidden]
    const float* token_table;   // Markov head's embedding of target ids, [V_t, rank]
    const uint8_t* token_bias;  // [V_d, rank]
    const float* confidence;    // [hidden (+ rank)]
    const int64_t* target_ids;  // [V_d]
    const uint64_t* constants;  // of the noise of each, [V_d] (sampling_row.h)
};

int64_t block_bytes(const BlockShape& shape);

struct BlockInputs {
    const float* hidden;         // [R * K, hidden], after the final norm
    const int64_t* anchors;      // target ids [R]
    const double* temperatures;  // [R]; 0 takes the likeliest token, the first among equals
    const uint64_t* keys;        // of each draft's noise, [R, K]; not read at temperature 0
};

// Blocks of a vanilla Markov head, draft after draft.
// drafts: target ids [R, K]; scores: logits of the confidences [R, K].
void draw_blocks(Workers& workers, int path, const BlockShape& shape, const BlockWeights& weights,
                 const BlockInputs& inputs, int64_t* drafts, float* scores, uint8_t* scratch);

}  // namespace slipstream
