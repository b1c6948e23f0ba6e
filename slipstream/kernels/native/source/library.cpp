// What the package calls, by ctypes. Pointers are to contiguous memory of the caller; nothing is kept of them.
#include <new>

#include "attend.h"
#include "decoder.h"
#include "drafter.h"
#include "ends.h"
#include "pack.h"
#include "paths.h"
#include "workers.h"

using namespace slipstream;

extern "C" {

// The fastest path that this processor has.
int slipstream_best_path() { return static_cast<int>(best_path()); }

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

void slipstream_quantize(void* workers, int path, const float* x, int num_rows, int num_inputs, int8_t* values,
                         float* scales, int32_t* sums) {
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        const Share rows = share_of(num_rows, part, num_parts);
        const size_t num_groups = static_cast<size_t>(num_inputs / kGroup);
        for (int row = rows.first; row < rows.last; ++row) {
            const size_t first = static_cast<size_t>(row) * num_groups;
            functions.quantize(x + first * kGroup, num_inputs, {values + first * kGroup, scales + first, sums + first});
        }
    });
}

void slipstream_linear(void* workers, int path, const uint8_t* records, int bits, int num_outputs, int num_inputs,
                       const int8_t* values, const float* scales, const int32_t* sums, int num_rows, const float* bias,
                       float* y, int64_t stride) {
    const Weight weight{records, static_cast<Bits>(bits), num_outputs, num_inputs};
    const Rows rows{values, scales, sums, num_rows};
    const LinearPath linear = linear_of(static_cast<Path>(path));
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        const Share blocks = share_of(weight.num_blocks(), part, num_parts);
        linear(weight, rows, blocks.first, blocks.last, {y, static_cast<ptrdiff_t>(stride), bias});
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
    attend(*static_cast<Workers*>(workers), attention_of(static_cast<Path>(path)), step, {cache, is_bfloat16 != 0}, query,
           static_cast<ptrdiff_t>(stride), output);
}

// A token for each row of logits [N, V], `stride` floats from row to row: the likeliest at temperature 0, else a draw under
// the row's key. -1 where a row holds a NaN or an infinity.
void slipstream_sample(void* workers, int path, const float* logits, int num_rows, int vocab_size, int64_t stride,
                       const double* temperatures, const uint64_t* keys, const uint64_t* constants, int32_t* token_ids) {
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    static_cast<Workers*>(workers)->run([&](int part, int num_parts) {
        const Share rows = share_of(num_rows, part, num_parts);
        for (int row = rows.first; row < rows.last; ++row) {
            const float* from = logits + row * stride;
            const int top = functions.first_argmax(from, vocab_size);
            const bool is_drawn = top >= 0 && temperatures[row] > 0.0;
            token_ids[row] =
                is_drawn ? functions.draw(from, vocab_size, top, temperatures[row], keys[row], constants) : top;
        }
    });
}

int64_t slipstream_scratch_bytes(const Shape* shape, int num_rows) { return scratch_bytes(*shape, num_rows); }

void slipstream_run_layers(void* workers, int path, const Shape* shape, const Layer* layers, const StepRows* step,
                           float* x, uint8_t* scratch) {
    run_layers(*static_cast<Workers*>(workers), path, *shape, layers, *step, x, scratch);
}

int64_t slipstream_context_bytes(const ContextShape* shape) { return context_bytes(*shape); }

void slipstream_write_context(void* workers, int path, const ContextShape* shape, const uint8_t* fc,
                              const float* hidden_norm, const ContextLayer* layers, const ContextRows* rows,
                              uint8_t* scratch) {
    write_context(*static_cast<Workers*>(workers), path, *shape, fc, hidden_norm, layers, *rows, scratch);
}

int64_t slipstream_block_bytes(const BlockShape* shape) { return block_bytes(*shape); }

void slipstream_draw_blocks(void* workers, int path, const BlockShape* shape, const BlockWeights* weights,
                            const BlockInputs* inputs, int64_t* drafts, float* scores, uint8_t* scratch) {
    draw_blocks(*static_cast<Workers*>(workers), path, *shape, *weights, *inputs, drafts, scores, scratch);
}

void slipstream_embed(const uint8_t* records, int bits, int num_outputs, int num_inputs, const int64_t* ids, int num_rows,
                      float* x) {
    embed({records, static_cast<Bits>(bits), num_outputs, num_inputs}, ids, num_rows, x);
}

int64_t slipstream_project_bytes(int num_rows, int hidden_size) { return project_bytes(num_rows, hidden_size); }

void slipstream_project(void* workers, int path, const uint8_t* records, int bits, int num_outputs, int num_inputs,
                        const float* norm, float eps, const float* x, int num_rows, float* y, uint8_t* scratch) {
    project(*static_cast<Workers*>(workers), path, {records, static_cast<Bits>(bits), num_outputs, num_inputs}, norm, eps,
            x, num_rows, {y, static_cast<ptrdiff_t>(num_outputs)}, scratch);
}

void slipstream_normalize(void* workers, int path, const float* x, const float* norm, int num_rows, int hidden_size,
                          float eps, float* to) {
    normalize(*static_cast<Workers*>(workers), path, x, norm, num_rows, hidden_size, eps, to);
}

}  // extern "C"
