#pragma once

#include <cmath>
#include <limits>

#include "attention.h"
#include "exponential.h"

namespace slipstream {
namespace {  // of its own in every path: the compiler uses the path's instructions in all of it

constexpr int kHeadsAtOnce = 3;  // with two keys, or 32 numbers of a value: their sums fill the registers
constexpr int kKeysAtOnce = 2;

// Sixteen numbers of the cache as two Lanes. Of bfloat16 the even and the odd ones: splitting words costs less than
// spreading them.
template <typename Lanes>
struct Sixteen {
    Lanes a, b;

    explicit Sixteen(const float* from) : a(Lanes::load(from)), b(Lanes::load(from + 8)) {}
    explicit Sixteen(const uint16_t* from) : a(Lanes::load_even(from)), b(Lanes::load_odd(from)) {}
};

// Where the number `d` of a head stands when it is read by sixteens.
inline int place_of(const float*, int d) { return d; }
inline int place_of(const uint16_t*, int d) { return d / 16 * 16 + d % 2 * 8 + d % 16 / 2; }

// Keys of a tile's positions, of one layer and the first head. Those before the request's first key or after `last` are
// not looked at, but may be read: they stand for some other key of the request.
template <typename Number>
struct TileKeys {
    const Number* of[kKeyTile];

    void find(const AttentionStep& step, const RequestRows& request, const Number* cache, int position, int last) {
        const ptrdiff_t slot = static_cast<ptrdiff_t>(2) * step.num_kv_heads * step.head_dim;
        const int begin = request.first_key > position ? request.first_key - position : 0;
        const int end = last + 1 - position < kKeyTile ? last + 1 - position : kKeyTile;
        int place = (position + begin) / step.block_size, offset = (position + begin) % step.block_size;
        for (int i = begin; i < end; ++place, offset = 0) {
            const ptrdiff_t block = step.block_ids[request.block_start + place];
            const Number* from = cache + (block * step.block_size + offset) * slot;
            for (; offset < step.block_size && i < end; ++offset, ++i, from += slot) of[i] = from;
        }
        for (int i = 0; i < begin; ++i) of[i] = of[begin];
        for (int i = end; i < kKeyTile; ++i) of[i] = of[begin];
    }
};

// A row of the cache that will be read soon: what a request reads lies apart, so no processor sees it coming.
template <typename Number>
inline void prefetch(const Number* row, int width) {
    constexpr int line = 64 / sizeof(Number);
    for (int i = 0; i < width; i += line) __builtin_prefetch(row + i);
}

// One query head: its largest score, sums of its chances by lane, its output as read by sixteens.
struct HeadState {
    float* at;

    static int size(int width) { return width + 16; }
    float& largest() const { return at[0]; }
    float* sums() const { return at + 8; }
    float* output() const { return at + 16; }
};

// Products of H heads and two keys, summed by lane.
template <typename Lanes, int H, typename Number>
inline void multiply_keys(const float* queries, const Number* const* keys, ptrdiff_t to_head, int width,
                          Lanes (*products)[kKeyTile]) {
    Lanes sums[H][kKeysAtOnce];
    for (int h = 0; h < H; ++h) {
        for (int i = 0; i < kKeysAtOnce; ++i) sums[h][i] = Lanes::each(0.0f);
    }
    const Number* of[kKeysAtOnce];
    for (int i = 0; i < kKeysAtOnce; ++i) of[i] = keys[i] + to_head;
    for (int d = 0; d < width; d += 16) {
        for (int i = 0; i < kKeysAtOnce; ++i) {
            const Sixteen<Lanes> part(of[i] + d);
            for (int h = 0; h < H; ++h) {
                sums[h][i] = Lanes::fma(Lanes::load(queries + h * width + d), part.a, sums[h][i]);
                sums[h][i] = Lanes::fma(Lanes::load(queries + h * width + d + 8), part.b, sums[h][i]);
            }
        }
    }
    for (int h = 0; h < H; ++h) {
        for (int i = 0; i < kKeysAtOnce; ++i) products[h][i] = sums[h][i];
    }
}

// outputs of H heads, 16 N numbers from `d` on, += chances by values, key by key.
template <typename Lanes, int H, int N, typename Number>
inline void add_values(const float (*chances)[kKeyTile], const TileKeys<Number>& keys, const TileKeys<Number>* next,
                       ptrdiff_t to_value, int first, int last, int d, const HeadState* states) {
    Lanes sums[H][2 * N];
    for (int h = 0; h < H; ++h) {
        for (int n = 0; n < 2 * N; ++n) sums[h][n] = Lanes::load(states[h].output() + d + 8 * n);
    }
    for (int key = first; key < last; ++key) {
        const Number* from = keys.of[key] + to_value + d;
        if (next != nullptr) prefetch(next->of[key] + to_value + d, 16 * N);
        for (int n = 0; n < N; ++n) {
            const Sixteen<Lanes> part(from + 16 * n);
            for (int h = 0; h < H; ++h) {
                const Lanes chance = Lanes::each(chances[h][key]);
                sums[h][2 * n] = Lanes::fma(chance, part.a, sums[h][2 * n]);
                sums[h][2 * n + 1] = Lanes::fma(chance, part.b, sums[h][2 * n + 1]);
            }
        }
    }
    for (int h = 0; h < H; ++h) {
        for (int n = 0; n < 2 * N; ++n) sums[h][n].store(states[h].output() + d + 8 * n);
    }
}

// Chances of one head's keys [num_hidden, num_seen), up to a factor that its state keeps.
template <typename Lanes>
inline void chances_of(const Lanes* products, float scale, int num_hidden, int num_seen, int width, HeadState state,
                       float* chances) {
    const Lanes lowest = Lanes::each(-std::numeric_limits<float>::infinity());
    const int first_eight = num_hidden / 8, end_eight = (num_seen + 7) / 8;
    Lanes held[kKeyTile / 8];
    Lanes top = lowest;
    for (int eight = first_eight; eight < end_eight; ++eight) {
        Lanes scores = Lanes::sums(products + 8 * eight) * Lanes::each(scale);
        if (num_seen < 8 * eight + 8) scores = Lanes::first(num_seen - 8 * eight, scores, lowest);
        if (num_hidden > 8 * eight) scores = Lanes::first(num_hidden - 8 * eight, lowest, scores);
        held[eight] = scores;
        top = Lanes::max(scores, top);
    }
    const float largest = top.largest();
    if (largest > state.largest()) {
        const Lanes factor = exponential(Lanes::each(state.largest() - largest));
        (Lanes::load(state.sums()) * factor).store(state.sums());
        float* output = state.output();
        for (int d = 0; d < width; d += 8) (Lanes::load(output + d) * factor).store(output + d);
        state.largest() = largest;
    }
    const Lanes offset = Lanes::each(state.largest());
    Lanes total = Lanes::load(state.sums());
    for (int eight = first_eight; eight < end_eight; ++eight) {
        const Lanes part = exponential(held[eight] - offset);
        part.store(chances + 8 * eight);
        total = total + part;
    }
    total.store(state.sums());
}

// H heads of a row against a tile's keys [num_hidden, num_seen), of the head whose keys are `to_head` from the first's
// and its values `to_value`. `next`: the tile that comes after, to be fetched meanwhile; or nullptr.
template <typename Lanes, int H, typename Number>
void add_tile(const float* queries, const TileKeys<Number>& keys, const TileKeys<Number>* next, ptrdiff_t to_head,
              ptrdiff_t to_value, int width, float scale, int num_hidden, int num_seen, const HeadState* states) {
    Lanes products[H][kKeyTile];
    alignas(64) float chances[H][kKeyTile];
    for (int key = num_hidden / 8 * 8; key < (num_seen + 7) / 8 * 8; key += kKeysAtOnce) {
        if (next != nullptr) {
            for (int i = key; i < key + kKeysAtOnce; ++i) prefetch(next->of[i] + to_head, width);
        }
        Lanes(*of_key)[kKeyTile] = reinterpret_cast<Lanes(*)[kKeyTile]>(&products[0][key]);
        multiply_keys<Lanes, H>(queries, keys.of + key, to_head, width, of_key);
    }
    for (int h = 0; h < H; ++h) {
        chances_of<Lanes>(products[h], scale, num_hidden, num_seen, width, states[h], chances[h]);
    }
    int d = 0;
    const int first = num_hidden, last = num_seen;
    for (; d + 32 <= width; d += 32) add_values<Lanes, H, 2>(chances, keys, next, to_value, first, last, d, states);
    for (; d < width; d += 16) add_values<Lanes, H, 1>(chances, keys, next, to_value, first, last, d, states);
}

template <typename Lanes, typename Number>
class TilePass {
public:
    TilePass(const AttentionStep& step, const RequestRows& request, const AttentionTile& tile, const Number* cache,
             float* scratch)
        : step_(step),
          request_(request),
          tile_(tile),
          cache_(cache),
          width_(step.head_dim),
          group_(step.heads_per_key()),
          num_heads_(tile.num_kv_heads * group_),
          queries_(scratch),
          states_(scratch + static_cast<ptrdiff_t>(tile.num_rows) * num_heads_ * width_) {}

    void run(const float* query, ptrdiff_t stride, float* output) {
        read(query, stride);
        const int end = request_.first_position + request_.num_rows;  // of the request's rows
        const int last = step_.is_causal ? request_.first_position + tile_.first_row + tile_.num_rows - 1 : end - 1;
        const int first = request_.first_key / kKeyTile * kKeyTile;
        for (int kv_head = 0; kv_head < tile_.num_kv_heads; ++kv_head) {
            TileKeys<Number> tiles[2];
            tiles[0].find(step_, request_, cache_, first, last);
            for (int position = first, now = 0; position <= last; position += kKeyTile, now ^= 1) {
                const TileKeys<Number>* next = nullptr;
                if (position + kKeyTile <= last) {
                    tiles[now ^ 1].find(step_, request_, cache_, position + kKeyTile, last);
                    next = &tiles[now ^ 1];
                }
                for (int row = 0; row < tile_.num_rows; ++row, next = nullptr) {
                    const int own = step_.is_causal ? request_.first_position + tile_.first_row + row : end - 1;
                    add_heads(tiles[now], next, position, own, kv_head, row);
                }
            }
        }
        write(output);
    }

private:
    ptrdiff_t head_of(int row, int head) const { return static_cast<ptrdiff_t>(row) * num_heads_ + head; }
    HeadState state(int row, int head) const { return {states_ + head_of(row, head) * HeadState::size(width_)}; }
    float* query_of(int row, int head) const { return queries_ + head_of(row, head) * width_; }

    // The query heads of a key head, some at a time; each head's sums are its own, so how many changes no bit.
    void add_heads(const TileKeys<Number>& keys, const TileKeys<Number>* next, int position, int own, int kv_head,
                   int row) {
        const int num_hidden = request_.first_key > position ? request_.first_key - position : 0;
        const int num_seen = own - position + 1 < kKeyTile ? own - position + 1 : kKeyTile;
        if (num_seen <= num_hidden) return;
        const float scale = 1.0f / std::sqrt(static_cast<float>(width_));
        const ptrdiff_t to_head = static_cast<ptrdiff_t>(tile_.first_kv_head + kv_head) * width_;
        const ptrdiff_t to_value = to_head + static_cast<ptrdiff_t>(step_.num_kv_heads) * width_;
        for (int head = kv_head * group_; head < (kv_head + 1) * group_;) {
            const int left = (kv_head + 1) * group_ - head;
            HeadState states[kHeadsAtOnce];
            for (int h = 0; h < kHeadsAtOnce && h < left; ++h) states[h] = state(row, head + h);
            const float* queries = query_of(row, head);
            if (left >= 3) {
                add_tile<Lanes, 3>(queries, keys, next, to_head, to_value, width_, scale, num_hidden, num_seen, states);
            } else if (left == 2) {
                add_tile<Lanes, 2>(queries, keys, next, to_head, to_value, width_, scale, num_hidden, num_seen, states);
            } else {
                add_tile<Lanes, 1>(queries, keys, next, to_head, to_value, width_, scale, num_hidden, num_seen, states);
            }
            head += left < kHeadsAtOnce ? left : kHeadsAtOnce;
            next = nullptr;
        }
    }

    ptrdiff_t first_number() const { return static_cast<ptrdiff_t>(tile_.first_kv_head) * group_ * width_; }
    ptrdiff_t row_of(int row) const { return request_.row_start + tile_.first_row + row; }

    void read(const float* query, ptrdiff_t stride) {
        for (int row = 0; row < tile_.num_rows; ++row) {
            const float* from = query + row_of(row) * stride + first_number();
            for (int head = 0; head < num_heads_; ++head, from += width_) {
                float* to = query_of(row, head);
                for (int d = 0; d < width_; ++d) to[place_of(cache_, d)] = from[d];
                const HeadState begun = state(row, head);
                for (int i = 0; i < HeadState::size(width_); ++i) begun.at[i] = 0.0f;
                begun.largest() = -std::numeric_limits<float>::infinity();
            }
        }
    }

    void write(float* output) {
        for (int row = 0; row < tile_.num_rows; ++row) {
            float* to = output + row_of(row) * step_.num_heads * width_ + first_number();
            for (int head = 0; head < num_heads_; ++head, to += width_) {
                const HeadState done = state(row, head);
                float* sums = done.output();
                const Lanes total = Lanes::each(Lanes::load(done.sums()).sum());
                for (int d = 0; d < width_; d += 8) (Lanes::load(sums + d) / total).store(sums + d);
                for (int d = 0; d < width_; ++d) to[d] = sums[place_of(cache_, d)];
            }
        }
    }

    const AttentionStep& step_;
    const RequestRows& request_;
    const AttentionTile& tile_;
    const Number* cache_;
    int width_, group_, num_heads_;
    float* queries_;
    float* states_;
};

template <typename Lanes>
void attend_tile(const AttentionStep& step, const RequestRows& request, const AttentionTile& tile,
                 const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    if (cache.is_bfloat16) {
        TilePass<Lanes, uint16_t>(step, request, tile, static_cast<const uint16_t*>(cache.data), scratch)
            .run(query, stride, output);
    } else {
        TilePass<Lanes, float>(step, request, tile, static_cast<const float*>(cache.data), scratch)
            .run(query, stride, output);
    }
}

}  // namespace
}  // namespace slipstream
