// Blocked, threaded matrix products on raw rows. Every element of a result is one chain of fused
// multiply-adds in ascending order of the reduced index (a block leaves its partial sum in the output), so
// its bits do not depend on the shape of the batch, on the blocking or on the threads. Threads split rows and
// output columns only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/kernels/cpu/gemm_kernels.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops::cpu {

/// Rows [begin, end) of W[rows, cols] in panels.
struct Weights {
  const void* panels = nullptr;
  WeightType type = WeightType::kFloat;
  int64_t rows = 0, cols = 0;

  static Weights of(const PackedMatrix& w);
  /// Rows from a panel bound on.
  Weights slice(int64_t row_begin, int64_t row_end) const;
};

/// A low-rank pair used by rows [begin, end): after the chain of the base, `rank` more steps of low[row][j] *
/// up[j].
struct Extra {
  int64_t begin = 0, end = 0;
  int64_t rank = 0;
  const float* up = nullptr;  // element (j, output column n) is up[j * up_j + n * up_n]; one of the two is 1
  int64_t up_j = 0, up_n = 0;
  const float* up_panels = nullptr;  // the same as [panel][rank][16], where somebody packed it before
};

struct Product {
  const float* a = nullptr;  // [rows, .], row stride a_stride
  int64_t rows = 0, a_stride = 0;
  Weights w;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;             // the chain starts at C
  std::span<const Extra> extras = {};  // ascending, disjoint
  const float* low = nullptr;          // [rows, .]
  int64_t low_stride = 0;
  const float* bias = nullptr;
  const float* plus = nullptr;  // laid out as C, which it is not: added last
};

/// C[rows, W.rows] = A[rows, W.cols] W^T.
void multiply(const Product& product);
/// multiply() of products with the same A, in one turn of the threads where they run on tiles.
void multiply_all(std::span<const Product> products);
/// C[rows, W.cols] = A[rows, W.rows] W.
void multiply_transposed(const Product& product);
/// The extras alone: C += low up.
void multiply_extras(const Product& product, int64_t columns);

/// G[n, k] += sum over rows t of a range of y[t, n] x[t, k], range after range. `grad` is fp32 panels of
/// W[num_y, num_x].
void add_outer(const float* y, int64_t y_stride, int64_t num_y, const float* x, int64_t x_stride,
               int64_t num_x, std::span<const RowRange> order, float* grad);

/// One low-rank gradient: g[j, n] += sum over rows t of [begin, end) of low[t, j] wide[t, n], where element
/// (j, n) of g is g[j * g_j + n * g_n].
struct SkinnyGrad {
  int64_t begin = 0, end = 0;
  int64_t rank = 0;
  float* g = nullptr;
  int64_t g_j = 0, g_n = 0;
};
/// All of them in order.
void add_skinny(const float* low, int64_t low_stride, const float* wide, int64_t wide_stride, int64_t columns,
                std::span<const SkinnyGrad> grads);

/// One low-rank projection: low[t, 0..rank) = scale * sum over k of x[t, k] down[k, j] for rows [begin, end).
struct Shrink {
  int64_t begin = 0, end = 0;
  int64_t rank = 0;
  float scale = 1.0f;
  const float* down = nullptr;  // element (k, j) is down[k * down_k + j * down_j]; one of the two is 1
  int64_t down_k = 0, down_j = 0;
  const float* panels = nullptr;  // the same as [panel][k][16], where somebody packed it before
  float* low = nullptr;
  int64_t low_stride = 0;
};
/// accumulate: the chains start at what low holds; the scale comes after the chain in any case.
void shrink(const float* x, int64_t x_stride, int64_t reduced, std::span<const Shrink> spans,
            bool accumulate = false);

/// A float buffer of the calling thread, 64-byte aligned, at least `count` long, valid until the thread asks
/// for the same slot again. Slots 0, 1, 2 and 5 belong to the tasks of these products, 3 and 7 to the threads
/// that call them, 4 and 6 to the head.
inline constexpr int kScratchSlots = 8;
float* scratch(int slot, int64_t count);

}  // namespace twinkle::ops::cpu
