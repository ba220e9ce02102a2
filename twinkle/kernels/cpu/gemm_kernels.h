// The inner kernels of the matrix products, one table an instruction set. Every table computes an output
// element as one chain of fused multiply-adds over k in ascending order in fp32, so all tables give the same
// bits, and the bits of an element depend on its row of A and its column of B only. Pure functions: safe from
// any thread.
#pragma once

#include <cstdint>

namespace twinkle::ops::cpu {

inline constexpr int64_t kPanelWidth = 16;

enum class WeightType : int { kFloat = 0, kBf16 = 1, kHalf = 2 };

/// How a chain starts and ends: from zero, then written; from C, then written; from zero, then added to C.
enum class Chain : int { kZero, kContinue, kAdd };

/// C[m, n] = A[m, k] B[k, n], B in panels of 16 columns.
struct BlockArgs {
  const float* a;  // element (m, k) is a[m * a_row + k * a_k]
  int64_t a_row, a_k;
  const void* b;  // element (k, 16 p + j) is b[p * b_panel + k * b_row + j]; all 16 columns are readable
  int64_t b_panel, b_row;
  float* c;  // element (m, 16 p + j) is c[m * c_row + p * c_panel + j]; columns past n are not touched
  int64_t c_row, c_panel;
  int64_t m, n, k;
  Chain chain;
  // Memory that will be wanted next: `ahead_count` stretches of ahead_bytes, ahead_stride bytes apart, are
  // asked for bit by bit while this block is computed.
  const char* ahead = nullptr;
  int64_t ahead_count = 0, ahead_bytes = 0, ahead_stride = 0;
};

/// Sums of one row of a block of the vocabulary, of scores s = z * scale: max, sum of e = exp(s - max), and
/// sum of e * (s - max).
struct RowSums {
  float max, sum, weighted;
};

/// What turns a row of logits into its gradient, see head_gradient.
struct RowGradient {
  float scale, lse, dlogprob, entropy, dentropy;
  const float* next;  // a row of the same length that will be wanted soon, asked for meanwhile
};

struct KernelTable {
  int64_t tile_rows;  // rows of the register tile; B is worth unpacking to fp32 beyond direct_rows rows
  int64_t direct_rows;
  /// By type of B. Types other than fp32 want a_k == 1 and b_row == 16.
  void (*block[3])(const BlockArgs& args);
  /// count elements to fp32.
  void (*widen)(WeightType type, const void* in, int64_t count, float* out);
  /// fp32 to bf16 or fp16, to nearest even.
  void (*narrow)(WeightType type, const float* in, int64_t count, void* out);
  /// in: [cols][16] (a panel from some column on), out: [16][16] fp32 with out[i][j] = in[j][i], zeros for j
  /// >= cols.
  void (*widen_transposed)(WeightType type, const void* in, int64_t cols, float* out);
  /// out[i][j] = in[j][i] of 16 x 16 16-bit elements, strides in elements.
  void (*transpose_bits)(const uint16_t* in, int64_t in_stride, uint16_t* out, int64_t out_stride);
  /// For tiles: k <= 32 rows of a panel to [16 pairs][16][2] in bf16, zeros past k.
  void (*pack_pairs)(WeightType type, const void* in, int64_t k, uint16_t* out);
  /// The same of a transposed panel: in0 and in1 are [cols][16] of two neighbouring panels (in1 may be null),
  /// whose rows become 32 steps; columns past `cols` are zero.
  void (*pack_pairs_transposed)(WeightType type, const void* in0, const void* in1, int64_t cols,
                                uint16_t* out);
  /// out[k][16] of `rows` <= 16 strided rows: out[k][i] = in[i * stride + k], zeros for i >= rows.
  void (*pack_rows)(const float* in, int64_t stride, int64_t rows, int64_t cols, float* out);
  /// to += from.
  void (*add)(float* to, const float* from, int64_t count);
  RowSums (*row_sums)(const float* z, int64_t n, float scale, bool weighted);
  /// First i with z[i] * scale == score, or n.
  int64_t (*find)(const float* z, int64_t n, float scale, float score);
  /// z <- scale * -p (dlogprob + dentropy (log p + entropy)), p = exp(z * scale - lse).
  void (*row_gradient)(float* z, int64_t n, const RowGradient& row);
  void (*exp)(const float* in, int64_t n, float* out);
  /// Runs independent FMAs in registers only; returns the number of floating-point operations done.
  double (*burn)(int64_t rounds, float* sink);
};

const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();
/// The table of the active instruction set (which is not plain).
const KernelTable& kernels();

}  // namespace twinkle::ops::cpu
