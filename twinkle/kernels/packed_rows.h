// Rows of packed matrices in the matrix's own type: moved, not converted. Pure functions of their arguments;
// work is split over the threads of parallel_for by the caller or by PackedMatrix::build.
#pragma once

#include <cstdint>

#include "twinkle/kernels/ops.h"

namespace twinkle::ops {

/// Rows [., cols] of `dtype` that lie one after the other in memory, aligned for their type.
/// PackedMatrix::build knows them: a matrix of the same type is packed without a detour over fp32.
struct StoredRows {
  const void* data = nullptr;
  int64_t cols = 0;
  at::ScalarType dtype = at::kFloat;  // float32, bfloat16 or float16

  void operator()(int64_t row_begin, int64_t row_end, float* out) const;
};

/// Rows [row_begin, row_end) of a matrix on the CPU, in its own type.
void copy_rows(const PackedMatrix& matrix, int64_t row_begin, int64_t row_end, void* out);

}  // namespace twinkle::ops
