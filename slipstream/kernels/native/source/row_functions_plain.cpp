#include "lanes_plain.h"
#include "row_functions_body.h"

namespace slipstream {

const RowFunctions kPlainRowFunctions = row_functions<PlainLanes>();

}  // namespace slipstream
