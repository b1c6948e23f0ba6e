// Instruction paths, chosen when the program runs. All give the same bits.
#pragma once

#include "attention.h"
#include "linear.h"
#include "row_functions.h"

namespace slipstream {

enum class Path : int { plain = 0, avx2 = 1, avx512_vnni = 2 };

Path best_path();
LinearPath linear_of(Path path);
AttentionPath attention_of(Path path);
const RowFunctions& row_functions_of(Path path);

}  // namespace slipstream
