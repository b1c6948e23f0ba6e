#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "attention_tile.h"
#include "lanes_avx2.h"

namespace slipstream {

void attend_avx2(const AttentionStep& step, const RequestRows& request, const AttentionTile& tile,
                 const LayerCache& cache, const float* query, ptrdiff_t stride, float* output, float* scratch) {
    attend_tile<Avx2Lanes>(step, request, tile, cache, query, stride, output, scratch);
}

}  // namespace slipstream

#endif
