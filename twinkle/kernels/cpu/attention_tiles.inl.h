// What the attention kernels of both directions are made of, over simd.h: products of register tiles,
// packing, and which keys of a block a query sees. No threads here.
//
// Operands lie in chunks of 64 columns: a [rows, D] matrix is [ceil(D/64)][rows][64], zero-padded, so that
// one register-tile kernel with fixed strides serves every product.
#pragma once

#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/simd.h"

namespace twinkle::ops::cpu {
namespace {
namespace attn {

using namespace simd;  // NOLINT: the vocabulary of every line below

inline constexpr int64_t kBlock = 64;  // keys of a block, and columns of a chunk
inline constexpr int kTileRows = 6;
inline constexpr float kOnes[kTileRows] = {1, 1, 1, 1, 1, 1};

inline int64_t num_chunks(int64_t head_dim) { return (head_dim + kBlock - 1) / kBlock; }
/// Vectors of 16 columns in use in chunk c.
inline int chunk_units(int64_t head_dim, int64_t c) {
  return static_cast<int>((min_of(kBlock, head_dim - c * kBlock) + kLanes - 1) / kLanes);
}

// Register tiles.

// C[m][n] = alpha[m] * C[m][n] (0 when alpha is null) + the chain over k of A(m, k) * B[k][n], for MR rows
// and NU vectors. Every matrix has rows of 64; A(m, k) is A[m][k], in chunks of 64 k that are a_chunk apart,
// or A[k][m] when transposed.
template <int MR, int NU, bool kTransposed>
void tile_product(const float* a, int64_t a_chunk, const float* b, int64_t K, float* c, const float* alpha) {
  F16 acc[MR][NU];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
    const F16 scale = alpha ? set1(alpha[m]) : zero();
#pragma GCC unroll 4
    for (int u = 0; u < NU; ++u) acc[m][u] = alpha ? load(c + m * kBlock + u * kLanes) * scale : zero();
  }
  while (K > 0) {
    const int64_t count = kTransposed ? K : min_of(K, kBlock);
    const float* pa = a;
    for (const float* end = b + count * kBlock; b != end; b += kBlock) {
      F16 rhs[NU];
#pragma GCC unroll 4
      for (int u = 0; u < NU; ++u) rhs[u] = load(b + u * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        const F16 lhs = set1(pa[kTransposed ? m : m * kBlock]);
#pragma GCC unroll 4
        for (int u = 0; u < NU; ++u) acc[m][u] = fma(lhs, rhs[u], acc[m][u]);
      }
      pa += kTransposed ? kBlock : 1;
    }
    K -= count;
    a += a_chunk;
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 4
    for (int u = 0; u < NU; ++u) store(c + m * kBlock + u * kLanes, acc[m][u]);
  }
}

using TileProduct = void (*)(const float*, int64_t, const float*, int64_t, float*, const float*);

template <bool kTransposed, int NU>
inline constexpr TileProduct kTilesOf[kTileRows] = {
    tile_product<1, NU, kTransposed>, tile_product<2, NU, kTransposed>, tile_product<3, NU, kTransposed>,
    tile_product<4, NU, kTransposed>, tile_product<5, NU, kTransposed>, tile_product<6, NU, kTransposed>};

template <bool kTransposed>
inline TileProduct pick(int rows, int units) {
#if defined(__AVX512F__)
  if (units == 4) return kTilesOf<kTransposed, 4>[rows - 1];
  if (units == 3) return kTilesOf<kTransposed, 3>[rows - 1];
  if (units == 2) return kTilesOf<kTransposed, 2>[rows - 1];
#else
  (void)units;
#endif
  return kTilesOf<kTransposed, 1>[rows - 1];
}

// tile_product over `units` vectors of columns.
template <bool kTransposed = false>
inline void product(int rows, int units, const float* a, int64_t a_chunk, const float* b, int64_t K, float* c,
                    const float* alpha) {
  for (int u = 0; u < units; u += kIsaUnits) {
    const int now = units - u < kIsaUnits ? units - u : kIsaUnits;
    pick<kTransposed>(rows, now)(a, a_chunk, b + u * kLanes, K, c + u * kLanes, alpha);
  }
}

// Packing.

inline void fill_zero(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, zero());
}

// A row of head_dim floats, times scale, into row r of a chunked matrix of `rows` rows.
inline void pack_row(const float* src, int64_t head_dim, float scale, int64_t rows, int64_t r, float* out) {
  const F16 factor = set1(scale);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    float* to = out + (d / kBlock) * rows * kBlock + r * kBlock + d % kBlock;
    const int64_t n = head_dim - d;
    store(to, (n >= kLanes ? load(src + d) : load_n(src + d, n)) * factor);
  }
}

// The first `keys` rows of a block, chunked; later rows are left alone.
inline void pack_rows(const float* src, int64_t stride, int64_t keys, int64_t head_dim, float* out) {
  for (int64_t r = 0; r < keys; ++r) pack_row(src + r * stride, head_dim, 1.0f, kBlock, r, out);
}

// The first `keys` rows of a block as [D][64], zeros past them.
inline void pack_transposed(const float* src, int64_t stride, int64_t keys, int64_t head_dim, float* out) {
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t width = min_of(kLanes, head_dim - d);
    for (int64_t r0 = 0; r0 < kBlock; r0 += kLanes) {
      F16 part[16];
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* row = src + (r0 + i) * stride + d;
        part[i] = r0 + i >= keys ? zero() : width == kLanes ? load(row) : load_n(row, width);
      }
      transpose(part);
      for (int64_t i = 0; i < width; ++i) store(out + (d + i) * kBlock + r0, part[i]);
    }
  }
}

/// Keys of the block at `base` that a query at `position` sees: [lo, hi), empty when lo >= hi.
struct Seen {
  int64_t lo, hi;
};
inline Seen seen_keys(int64_t position, int64_t base, int64_t window) {
  const int64_t hi = min_of(kBlock, position + 1 - base);
  const int64_t lo = window > 0 ? max_of(0, position + 1 - window - base) : 0;
  return {min_of(lo, kBlock), max_of(0, hi)};
}

/// Lanes of vector u of a block's scores that lie in [seen.lo, seen.hi).
inline bool whole(Seen seen, int64_t u) { return seen.lo <= u * kLanes && seen.hi >= (u + 1) * kLanes; }
inline Mask16 lanes_of(Seen seen, int64_t u) {
  const int64_t lo = max_of(0, min_of(kLanes, seen.lo - u * kLanes));
  const int64_t hi = max_of(0, min_of(kLanes, seen.hi - u * kLanes));
  return lanes_between(lo, hi);
}

}  // namespace attn
}  // namespace
}  // namespace twinkle::ops::cpu
