// The vector kernels behind rows.cpp, attention.cpp, embedding.cpp and optimizer.cpp, as a table of functions
// for each instruction set. Each works on the rows, columns or elements it is given and starts no threads;
// the caller splits. Bits do not depend on the split, and AVX2 and AVX-512 give the same. No torch here.
#pragma once

#include <cstdint>

namespace twinkle::ops::cpu {

/// Queries of one sequence at neighbouring positions, for some key/value groups of R = H/G heads each. A
/// group has positions * R rows, position-major.
struct AttentionTile {
  const float* q;    // the first position's first head of the first group
  int64_t q_stride;  // H * D
  int64_t positions, groups, heads, head_dim;
  int64_t first;   // position of the first query in its sequence
  const float* k;  // the first group's head of key row 0
  const float* v;
  int64_t kv_stride;          // G * D
  int64_t kv_begin;           // row of position 0 when blocks and block_rows are null
  const int32_t* blocks;      // place of each block of 64 positions, or null
  const int64_t* block_rows;  // first row of each, or null
  float scale;
  int64_t window;      // 0: none
  float* o;            // laid out as q
  float* lse;          // [positions, H] at the first group's first head
  int64_t lse_stride;  // H
};

/// The chains of dq of one sequence and key/value group, whose key blocks are tasks of several threads: block
/// j goes into the dq of a tile of queries when due[tile] == j. A task waits only for tasks of earlier
/// blocks, which must have been started before it.
struct GradTurns {
  int64_t* due;        // a number a tile, zero at first
  const char* failed;  // not zero: a task failed, nobody waits any more
};
void wait_for_turn(const GradTurns& turns, int64_t tile, int64_t block);
void end_turn(const GradTurns& turns, int64_t tile, int64_t next_block);

/// One sequence and key/value group of a backward pass; every pointer is at the sequence's first query or
/// key.
struct AttentionGrad {
  const float *dout, *q, *k, *v, *lse, *delta;
  float *dq, *dk, *dv;
  int64_t q_stride, kv_stride, lse_stride;
  int64_t first;  // position of the first query
  int64_t length, heads, head_dim;
  float scale;
  int64_t window;
  GradTurns turns;
};

inline constexpr int64_t kAttentionTileRows = 384;
inline constexpr int64_t kAttentionGradTileRows = 96;
inline constexpr int64_t kAttentionGradBlocks = 2;

struct AdamConstants {
  float grad_scale, keep, decay, weight1, beta2, weight2, root2, eps, minus_step_size;
};

struct RowKernels {
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t K, int64_t rows, float* y, float* rstd);
  void (*rms_norm_backward)(const float* dy, const float* x, const float* w, const float* rstd, int64_t K,
                            int64_t rows, float* dx, bool accumulate);
  /// Columns [col_begin, col_end) of dw += the sum over rows [row_begin, row_end).
  void (*rms_norm_weight_grad)(const float* dy, const float* x, const float* rstd, int64_t K,
                               int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                               float* dw);
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*rope)(float* x, const int32_t* positions, const float* cos, const float* sin, int64_t rows,
               int64_t heads, int64_t head_dim, int64_t half, bool inverse);
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* h);
  void (*swiglu_backward)(const float* dh, int64_t n, float* gate, float* up);
  void (*dropout)(const float* x, uint64_t key, uint32_t threshold, float scale, const uint64_t* sequence_key,
                  const int32_t* position, int64_t K, int64_t rows, float* y);

  /// One row of a table in panels, column stride 16, as floats.
  void (*read_panel_row)(const uint16_t* first, bool half, int64_t K, float* out);
  void (*read_panel_row_float)(const float* first, int64_t K, float* out);
  /// Columns [col_begin, col_end) of the panel row += the sum of the given rows of dout, from zero, in order.
  void (*add_to_panel_row)(const float* dout, const int32_t* rows, int64_t count, int64_t K,
                           int64_t col_begin, int64_t col_end, float* first);

  void (*adam)(const float* g, int64_t n, const AdamConstants& c, float* p, float* m, float* v);
  double (*sum_of_squares)(const float* x, int64_t n);

  /// Floats of scratch for a tile of `rows` rows in each of `groups` groups.
  int64_t (*attention_scratch)(int64_t groups, int64_t rows, int64_t head_dim);
  void (*attention)(const AttentionTile& tile, float* scratch);
  /// delta[t, h] = do . o for `rows` rows of head_dim.
  void (*attention_delta)(const float* dout, const float* o, int64_t rows, int64_t head_dim, float* delta);
  int64_t (*attention_grad_scratch)(int64_t heads, int64_t head_dim);
  /// dk and dv (=) of at most kAttentionGradBlocks key blocks, and their share of dq: the first block that a
  /// tile of queries sees writes the tile's dq, the others go on from there, in order.
  void (*attention_grad)(const AttentionGrad& task, int64_t block_begin, int64_t block_end, float* scratch);
};

/// Positions of a query tile in the backward pass.
inline int64_t attention_grad_positions(int64_t heads) {
  return heads >= kAttentionGradTileRows ? 1 : kAttentionGradTileRows / heads;
}

extern const RowKernels kRowKernelsAvx2, kRowKernelsAvx512;

/// The table of the active instruction set.
const RowKernels& row_kernels();

}  // namespace twinkle::ops::cpu
