#pragma once

#include <cmath>
#include <limits>

#include "attention.h"
#include "exponential.h"

namespace slipstream {
namespace {  // of its own in every path: the compiler uses the path's instructions in all of it

// A row of the cache that will be read soon: what a request reads lies apart, so no processor sees it coming.
template <typename Number>
inline void prefetch(const Number* row, int width) {
    constexpr int line = 64 / sizeof(Number);
    for (int i = 0; i < width; i += line) __builtin_prefetch(row + i);
}

template <typename Lanes>
void copy_row(const uint16_t* from, int width, float* to) {
    int d = 0;
    for (; d + 64 <= width; d += 64) {
#pragma GCC unroll 8
        for (int i = 0; i < 64; i += 8) Lanes::load_bfloat16(from + d + i).store(to + d + i);
    }
    for (; d < width; d += 8) Lanes::load_bfloat16(from + d).store(to + d);
}

template <typename Lanes>
void copy_row(const float* from, int width, float* to) {
    for (int d = 0; d < width; d += 8) Lanes::load(from + d).store(to + d);
}

// Keys and values of one head at positions [position, position + kKeyTile), as floats [kKeyTile, head_dim] each. What is
// not between the request's first key and `last` stays as it was: nobody looks at it.
template <typename Lanes, typename Number>
void gather_tile(const AttentionStep& step, const RequestRows& request, const Number* cache, int position, int last,
                 int kv_head, float* keys, float* values) {
    const int width = step.head_dim;
    const int to_values = step.num_kv_heads * width;
    const int end = last + 1 < position + kKeyTile ? last + 1 : position + kKeyTile;
    const bool is_more = position + kKeyTile <= last && kKeyTile % step.block_size == 0;
    for (int at = request.first_key > position ? request.first_key : position; at < end;) {
        const int place = at / step.block_size, offset = at % step.block_size;
        const int64_t block = step.block_ids[request.block_start + place];
        const int until = at + step.block_size - offset < end ? at + step.block_size - offset : end;
        const Number* from = cache + ((block * step.block_size + offset) * 2 * step.num_kv_heads + kv_head) * width;
        ptrdiff_t ahead = 0;  // to the same row of the next tile
        if (is_more && at + kKeyTile <= last) {
            const int64_t next = step.block_ids[request.block_start + place + kKeyTile / step.block_size];
            ahead = (next - block) * step.block_size * 2 * to_values;
        }
        for (; at < until; ++at, from += 2 * to_values) {
            if (ahead != 0) {
                prefetch(from + ahead, width);
                prefetch(from + ahead + to_values, width);
            }
            copy_row<Lanes>(from, width, keys + (at - position) * width);
            copy_row<Lanes>(from + to_values, width, values + (at - position) * width);
        }
    }
}

// output[d ... d + 8 N) += chances by values, key by key.
template <typename Lanes, int N>
void add_values(const float* chances, const float* values, int width, int first, int last, float* output) {
    Lanes sums[N];
    for (int n = 0; n < N; ++n) sums[n] = Lanes::load(output + 8 * n);
    for (int key = first; key < last; ++key) {
        const Lanes chance = Lanes::each(chances[key]);
        for (int n = 0; n < N; ++n) sums[n] = Lanes::fma(chance, Lanes::load(values + key * width + 8 * n), sums[n]);
    }
    for (int n = 0; n < N; ++n) sums[n].store(output + 8 * n);
}

// One query against a tile's keys [num_hidden, num_seen): `state` is [largest score, unused x 7, sums of chances [8],
// output].
template <typename Lanes>
void add_tile(const float* query, const float* keys, const float* values, int width, float scale, int num_hidden,
              int num_seen, float* state) {
    const Lanes lowest = Lanes::each(-std::numeric_limits<float>::infinity());
    const int first_eight = num_hidden / 8, end_eight = (num_seen + 7) / 8;
    Lanes scores[kKeyTile / 8];
    Lanes top = lowest;
    for (int eight = first_eight; eight < end_eight; ++eight) {
        Lanes products[8];
        for (Lanes& product : products) product = Lanes::each(0.0f);
        const float* of_eight = keys + 8 * eight * width;
        for (int d = 0; d < width; d += 8) {
            const Lanes part = Lanes::load(query + d);
            for (int i = 0; i < 8; ++i) products[i] = Lanes::fma(part, Lanes::load(of_eight + i * width + d), products[i]);
        }
        Lanes sums = Lanes::sums(products) * Lanes::each(scale);
        if (num_seen < 8 * eight + 8) sums = Lanes::first(num_seen - 8 * eight, sums, lowest);
        if (num_hidden > 8 * eight) sums = Lanes::first(num_hidden - 8 * eight, lowest, sums);
        scores[eight] = sums;
        top = Lanes::max(sums, top);
    }
    const float largest = top.largest();
    float* sums = state + 8;
    float* output = state + 16;
    if (largest > state[0]) {
        const Lanes factor = exponential(Lanes::each(state[0] - largest));
        (Lanes::load(sums) * factor).store(sums);
        for (int d = 0; d < width; d += 8) (Lanes::load(output + d) * factor).store(output + d);
        state[0] = largest;
    }
    alignas(64) float chances[kKeyTile];
    const Lanes offset = Lanes::each(state[0]);
    Lanes total = Lanes::load(sums);
    for (int eight = first_eight; eight < end_eight; ++eight) {
        const Lanes part = exponential(scores[eight] - offset);
        part.store(chances + 8 * eight);
        total = total + part;
    }
    total.store(sums);
    int d = 0;
    for (; d + 64 <= width; d += 64) add_values<Lanes, 8>(chances, values + d, width, num_hidden, num_seen, output + d);
    for (; d < width; d += 16) add_values<Lanes, 2>(chances, values + d, width, num_hidden, num_seen, output + d);
}

template <typename Lanes>
void attend_tile(const AttentionStep& step, const RequestRows& request, const AttentionTile& tile,
                 const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    const int width = step.head_dim, group = step.heads_per_key(), state_size = width + 16;
    const int first = tile.first_row, count = tile.num_rows, num_heads = tile.num_kv_heads * group;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    float* keys = scratch;
    float* values = keys + kKeyTile * width;
    float* states = values + kKeyTile * width;
    for (int i = 0; i < count * num_heads; ++i) {
        float* state = states + i * state_size;
        for (int j = 0; j < state_size; ++j) state[j] = 0.0f;
        state[0] = -std::numeric_limits<float>::infinity();
    }
    const ptrdiff_t first_head = static_cast<ptrdiff_t>(tile.first_kv_head) * group * width;
    const int end = request.first_position + request.num_rows;  // of the request's rows
    const int last_seen = step.is_causal ? request.first_position + first + count - 1 : end - 1;
    for (int position = request.first_key / kKeyTile * kKeyTile; position <= last_seen; position += kKeyTile) {
        const int num_hidden = request.first_key > position ? request.first_key - position : 0;
        for (int kv_head = 0; kv_head < tile.num_kv_heads; ++kv_head) {
            if (cache.is_bfloat16) {
                gather_tile<Lanes>(step, request, static_cast<const uint16_t*>(cache.data), position, last_seen,
                                   tile.first_kv_head + kv_head, keys, values);
            } else {
                gather_tile<Lanes>(step, request, static_cast<const float*>(cache.data), position, last_seen,
                                   tile.first_kv_head + kv_head, keys, values);
            }
            for (int row = 0; row < count; ++row) {
                const int own = step.is_causal ? request.first_position + first + row : end - 1;
                const int num_seen = own - position + 1 < kKeyTile ? own - position + 1 : kKeyTile;
                if (num_seen <= num_hidden) continue;
                const float* from = query + (request.row_start + first + row) * stride + first_head;
                for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                    add_tile<Lanes>(from + head * width, keys, values, width, scale, num_hidden, num_seen,
                                    states + (row * num_heads + head) * state_size);
                }
            }
        }
    }
    for (int row = 0; row < count; ++row) {
        const ptrdiff_t place = request.row_start + first + row;
        float* to = output + place * step.num_heads * width + first_head;
        for (int head = 0; head < num_heads; ++head, to += width) {
            const float* state = states + (row * num_heads + head) * state_size;
            const Lanes total = Lanes::each(Lanes::load(state + 8).sum());
            for (int d = 0; d < width; d += 8) (Lanes::load(state + 16 + d) / total).store(to + d);
        }
    }
}

}  // namespace
}  // namespace slipstream
