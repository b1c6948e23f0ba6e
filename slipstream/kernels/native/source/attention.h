// Attention of flat mixed batches over a paged cache, by an online softmax over the keys of a request in order (Milakov and
// Gimelshein, arXiv 1805.02867). Keys are taken in tiles, at positions that are multiples of a tile, so a row's bits
// depend on what it sees alone: not on its chunk, its batch, the blocks or the threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// The rows of one request: positions first_position ... first_position + num_rows - 1.
struct RequestRows {
    int32_t row_start, num_rows, first_position, first_key;  // first_key: position of the earliest key that is seen
    int32_t block_start;                                     // of its block table in `block_ids`
};

struct AttentionStep {
    const RequestRows* requests;
    const int32_t* block_ids;
    int num_requests, block_size, num_heads, num_kv_heads, head_dim;
    bool is_causal;  // else a row sees all rows of its request

    int heads_per_key() const { return num_heads / num_kv_heads; }
};

// Cache of one layer: [blocks, block_size, 2, num_kv_heads, head_dim], float or bfloat16.
struct LayerCache {
    const void* data;
    bool is_bfloat16;
};

constexpr int kKeyTile = 32;
constexpr int kRowTile = 8;  // rows of a request whose heads share a pass over the keys
constexpr int kMaxHeadDim = 256;

// A part of a step that is done in one go: rows [first_row, first_row + num_rows) of a request, num_rows <= kRowTile, and
// the query heads of some key heads.
struct AttentionTile {
    int first_row, num_rows, first_kv_head, num_kv_heads;
};

// Floats of scratch memory that a tile needs.
inline size_t attention_scratch(const AttentionStep& step) {
    return static_cast<size_t>(kRowTile) * step.num_heads * (2u * step.head_dim + 16);
}

// query, output: [N, num_heads, head_dim], with `stride` floats from row to row of the query.
using AttentionPath = void (*)(const AttentionStep&, const RequestRows&, const AttentionTile&, const LayerCache&,
                               const float* query, ptrdiff_t stride, float* output, float* scratch);

void attend_plain(const AttentionStep&, const RequestRows&, const AttentionTile&, const LayerCache&, const float* query,
                  ptrdiff_t stride, float* output, float* scratch);
void attend_avx2(const AttentionStep&, const RequestRows&, const AttentionTile&, const LayerCache&, const float* query,
                 ptrdiff_t stride, float* output, float* scratch);

}  // namespace slipstream
