#include "paths.h"

namespace slipstream {

#if defined(__x86_64__)

Path best_path() {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        return Path::avx512_vnni;
    }
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    return has_avx2 ? Path::avx2 : Path::plain;
}

LinearPath linear_of(Path path) {
    switch (path) {
        case Path::avx512_vnni: return linear_avx512_vnni;
        case Path::avx2: return linear_avx2;
        default: return linear_plain;
    }
}

// Lanes are eight floats wide on every path, or sums would be of another order.
AttentionPath attention_of(Path path) { return path == Path::plain ? attend_plain : attend_avx2; }

const RowFunctions& row_functions_of(Path path) {
    return path == Path::plain ? kPlainRowFunctions : kAvx2RowFunctions;
}

#else

Path best_path() { return Path::plain; }
LinearPath linear_of(Path) { return linear_plain; }
AttentionPath attention_of(Path) { return attend_plain; }
const RowFunctions& row_functions_of(Path) { return kPlainRowFunctions; }

#endif

}  // namespace slipstream
