#pragma once

#include <cmath>
#include <limits>

#include "attention.h"
#include "exponential.h"

namespace slipstream {

// Eight keys or values of one head, as floats [8, head_dim]; what lies past `last` is zero.
template <typename Lanes>
void gather_eight(const AttentionStep& step, const RequestRows& request, const LayerCache& cache, int position, int last,
                  int kv_head, int which, float* to) {
    const int width = step.head_dim;
    for (int i = 0; i < 8; ++i, to += width) {
        const int at = position + i;
        if (at > last || at < request.first_key) {
            for (int d = 0; d < width; ++d) to[d] = 0.0f;
            continue;
        }
        const int64_t block = step.block_ids[request.block_start + at / step.block_size];
        const int64_t slot = block * step.block_size + at % step.block_size;
        const int64_t start = ((slot * 2 + which) * step.num_kv_heads + kv_head) * width;
        for (int d = 0; d < width; d += 8) {
            const Lanes part = cache.is_bfloat16
                                   ? Lanes::load_bfloat16(static_cast<const uint16_t*>(cache.data) + start + d)
                                   : Lanes::load(static_cast<const float*>(cache.data) + start + d);
            part.store(to + d);
        }
    }
}

// One query against eight keys and values: `state` is [largest score, unused x 7, sums of chances [8], output].
template <typename Lanes>
void add_eight(const float* query, const float* keys, const float* values, int width, float scale, int num_hidden,
               int num_seen, float* state) {
    const float infinity = std::numeric_limits<float>::infinity();
    Lanes products[8];
    for (Lanes& product : products) product = Lanes::each(0.0f);
    for (int d = 0; d < width; d += 8) {
        const Lanes part = Lanes::load(query + d);
        for (int i = 0; i < 8; ++i) products[i] = Lanes::fma(part, Lanes::load(keys + i * width + d), products[i]);
    }
    Lanes scores = Lanes::sums(products) * Lanes::each(scale);
    scores = Lanes::first(num_seen, scores, Lanes::each(-infinity));
    if (num_hidden > 0) scores = Lanes::first(num_hidden, Lanes::each(-infinity), scores);
    const float largest = scores.largest();
    float* sums = state + 8;
    float* output = state + 16;
    if (largest > state[0]) {
        const Lanes factor = exponential(Lanes::each(state[0] - largest));
        (Lanes::load(sums) * factor).store(sums);
        for (int d = 0; d < width; d += 8) (Lanes::load(output + d) * factor).store(output + d);
        state[0] = largest;
    }
    const Lanes chances = exponential(scores - Lanes::each(state[0]));
    (Lanes::load(sums) + chances).store(sums);
    float chance[8];
    chances.store(chance);
    for (int d = 0; d < width; d += 8) {
        Lanes sum = Lanes::load(output + d);
        for (int i = 0; i < 8; ++i) sum = Lanes::fma(Lanes::each(chance[i]), Lanes::load(values + i * width + d), sum);
        sum.store(output + d);
    }
}

template <typename Lanes>
void attend_tile(const AttentionStep& step, const RequestRows& request, int first, int count, int kv_head,
                 const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    const int width = step.head_dim, group = step.heads_per_key(), state_size = width + 16;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    float* keys = scratch;
    float* values = keys + 8 * width;
    float* states = values + 8 * width;
    for (int i = 0; i < count * group; ++i) {
        float* state = states + i * state_size;
        for (int j = 0; j < state_size; ++j) state[j] = 0.0f;
        state[0] = -std::numeric_limits<float>::infinity();
    }
    const int end = request.first_position + request.num_rows;  // of the request's rows
    const int last_seen = step.is_causal ? request.first_position + first + count - 1 : end - 1;
    for (int position = request.first_key / 8 * 8; position <= last_seen; position += 8) {
        gather_eight<Lanes>(step, request, cache, position, last_seen, kv_head, 0, keys);
        gather_eight<Lanes>(step, request, cache, position, last_seen, kv_head, 1, values);
        const int num_hidden = request.first_key > position ? request.first_key - position : 0;
        for (int row = 0; row < count; ++row) {
            const int own = step.is_causal ? request.first_position + first + row : end - 1;
            const int num_seen = own - position + 1;
            if (num_seen <= num_hidden) continue;
            const float* from = query + (request.row_start + first + row) * stride + kv_head * group * width;
            for (int head = 0; head < group; ++head) {
                add_eight<Lanes>(from + head * width, keys, values, width, scale, num_hidden, num_seen < 8 ? num_seen : 8,
                                 states + (row * group + head) * state_size);
            }
        }
    }
    for (int row = 0; row < count; ++row) {
        float* to = output + (static_cast<ptrdiff_t>(request.row_start + first + row) * step.num_heads + kv_head * group) * width;
        for (int head = 0; head < group; ++head, to += width) {
            const float* state = states + (row * group + head) * state_size;
            const Lanes total = Lanes::each(Lanes::load(state + 8).sum());
            for (int d = 0; d < width; d += 8) (Lanes::load(state + 16 + d) / total).store(to + d);
        }
    }
}

}  // namespace slipstream
