#include "attention_tile.h"
#include "lanes_plain.h"

namespace slipstream {

void attend_plain(const AttentionStep& step, const RequestRows& request, const AttentionTile& tile,
                  const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    attend_tile<PlainLanes>(step, request, tile, cache, query, stride, output, scratch);
}

}  // namespace slipstream
