// The products on matrix tiles (AMX): inputs rounded to bf16, sums in fp32. A chain runs over steps of 32 of
// the reduced index in ascending order, each step as the processor's TDPBF16PS defines it, so an element's
// bits depend on its row and column only, as everywhere. Low-rank steps and biases stay in fp32.
#pragma once

#include "twinkle/kernels/cpu/gemm.h"

namespace twinkle::ops::cpu {

/// Whether products run on tiles: the active instruction set is AMX, or a test emulates the tiles.
bool tiles_in_use();
/// For tests: products use tiles computed in scalar code by the definition of the instruction.
void emulate_tiles(bool on);

void multiply_in_tiles(const Product& product, bool transposed);

}  // namespace twinkle::ops::cpu
