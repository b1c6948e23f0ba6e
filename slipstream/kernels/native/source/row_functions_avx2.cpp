#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "lanes_avx2.h"
#include "row_functions_body.h"

namespace slipstream {

const RowFunctions kAvx2RowFunctions = row_functions<Avx2Lanes>();

}  // namespace slipstream

#endif
