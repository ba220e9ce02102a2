// The products of processors that multiply bf16: inputs rounded to it, sums in fp32. A chain runs over the
// reduced index in ascending order, by 32 on matrix tiles (AMX, as TDPBF16PS defines it, for weights of any
// type) or by pairs (VDPBF16PS, the odd element of a pair first, for weights in bf16), so an element's bits
// depend on its row and column only, as everywhere. Low-rank steps and biases stay in fp32.
#pragma once

#include "twinkle/kernels/cpu/gemm.h"

namespace twinkle::ops::cpu {

/// Whether products with weights of a type run so, by the active instruction set or since a test emulates the
/// tiles.
bool tiles_in_use(WeightType type);
/// For tests: products use tiles computed in scalar code by the definition of the instruction.
void emulate_tiles(bool on);

/// Products with the same A, rows and reduced index.
void multiply_in_tiles(std::span<const Product> products, bool transposed);

}  // namespace twinkle::ops::cpu
