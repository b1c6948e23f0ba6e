#include "attend.h"

#include <algorithm>
#include <vector>

namespace slipstream {
namespace {

// Keys that a tile of rows reads, times its rows.
int64_t tile_work(const RequestRows& request, int first, int count) {
    return static_cast<int64_t>(request.first_position - request.first_key + first + count) * count;
}

int64_t work_of(const RequestRows& request) {
    int64_t total = 0;
    for (int first = 0; first < request.num_rows; first += kRowTile) {
        total += tile_work(request, first, std::min(kRowTile, request.num_rows - first));
    }
    return total;
}

int tiles_of(const RequestRows& request) { return (request.num_rows + kRowTile - 1) / kRowTile; }

constexpr int kTilesPerThread = 4;

}  // namespace

void attend(Workers& workers, AttentionPath path, const AttentionStep& step, const LayerCache& cache, const float* query,
            ptrdiff_t stride, float* output) {
    int64_t total = 0;
    int num_tiles = 0;
    for (int i = 0; i < step.num_requests; ++i) {
        total += work_of(step.requests[i]);
        num_tiles += tiles_of(step.requests[i]);
    }
    // All key heads of a token lie side by side, so one thread should read them together; unless that leaves others idle.
    const int heads = num_tiles >= kTilesPerThread * workers.count() ? step.num_kv_heads : 1;
    total *= step.num_kv_heads / heads;
    workers.run([&](int part, int num_parts) {
        std::vector<float> scratch(attention_scratch(step));
        const int64_t begin = total * part / num_parts, end = total * (part + 1) / num_parts;
        int64_t at = 0;
        for (int i = 0; i < step.num_requests; ++i) {
            const RequestRows& request = step.requests[i];
            for (int kv_head = 0; kv_head < step.num_kv_heads; kv_head += heads) {
                for (int first = 0; first < request.num_rows; first += kRowTile) {
                    const int count = std::min(kRowTile, request.num_rows - first);
                    if (at >= begin && at < end) {
                        path(step, request, {first, count, kv_head, heads}, cache, query, stride, output, scratch.data());
                    }
                    at += tile_work(request, first, count);
                }
            }
        }
    });
}

}  // namespace slipstream
