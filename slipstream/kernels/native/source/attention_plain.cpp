#include "attention_tile.h"
#include "lanes_plain.h"

namespace slipstream {

void attend_plain(const AttentionStep& step, const RequestRows& request, int first, int count, int kv_head,
                  const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    attend_tile<PlainLanes>(step, request, first, count, kv_head, cache, query, stride, output, scratch);
}

}  // namespace slipstream
