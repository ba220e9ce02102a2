// Attention kernels, written once over simd.h and compiled for each instruction set. A tile of queries walks
// the key blocks from position 0 (or from its window's first block): scores are one FMA chain over the head
// dim, the softmax state of a row changes only at blocks it sees, and P V is one FMA chain over the keys it
// sees, in order. So how rows are grouped into tiles never shows in their bits. The backward pass keeps the
// same chains: dq over keys ascending, dk and dv over queries ascending (position, then head). No threads
// here; scratch is the caller's.
//
// Operands lie in chunks of 64 columns: a [rows, D] matrix is [ceil(D/64)][rows][64], zero-padded, so that
// one register-tile kernel with fixed strides serves every product.
#pragma once

#include <math.h>

#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/simd.h"

namespace twinkle::cpu {
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

// ---------------------------------------------------------------- register tiles

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

// ---------------------------------------------------------------- packing

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

// ---------------------------------------------------------------- forward

// What a tile works on. q and o are chunked, with the rows of one group after those of another.
struct ForwardScratch {
  int64_t rows, chunks;
  float *q, *o;                       // [groups][chunks][M][64]: scaled; not yet divided
  float *k_block, *v_block, *scores;  // [groups * D][64], [groups][chunks][64][64], [6][64]
  float *row_max, *row_sum;           // [groups][M]

  ForwardScratch(float* scratch, int64_t groups, int64_t M, int64_t head_dim)
      : rows(M), chunks(num_chunks(head_dim)) {
    q = scratch;
    o = q + groups * chunks * rows * kBlock;
    k_block = o + groups * chunks * rows * kBlock;
    v_block = k_block + groups * head_dim * kBlock;
    scores = v_block + groups * chunks * kBlock * kBlock;
    row_max = scores + kTileRows * kBlock;
    row_sum = row_max + groups * rows;
  }
};

int64_t attention_scratch(int64_t groups, int64_t rows, int64_t head_dim) {
  const int64_t chunks = num_chunks(head_dim);
  return groups * (2 * chunks * rows * kBlock + 2 * rows + (head_dim + chunks * kBlock) * kBlock) +
         kTileRows * kBlock;
}

// One block's step of the online softmax for rows that each see a key of it: scores become exp(score - max)
// on what a row sees (past `units` vectors they are not touched), and alpha is what its older sums are scaled
// by.
inline void softmax_step(int rows, int units, const Seen* seen, float* scores, float* row_max, float* row_sum,
                         float* alpha) {
  F16 wide[8];
  for (int m = 0; m < 8; ++m) wide[m] = zero();
  for (int m = 0; m < rows; ++m) {
    float* row = scores + m * kBlock;
    F16 s[4];
    if (units == 4 && seen[m].lo == 0 && seen[m].hi == kBlock) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) s[u] = load(row + u * kLanes);
    } else {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        s[u] = set1(-__builtin_inff());
        if (u >= units) continue;
        s[u] = select(lanes_of(seen[m], u), load(row + u * kLanes), s[u]);
        store(row + u * kLanes, s[u]);
      }
    }
    wide[m] = max(max(s[0], s[1]), max(s[2], s[3]));
  }
  float fresh[8], factor[16] = {}, sum_of[8];
  _mm256_storeu_ps(fresh, max_lanes(wide));
  for (int m = 0; m < rows; ++m) {
    fresh[m] = row_max[m] > fresh[m] ? row_max[m] : fresh[m];
    factor[m] = row_max[m] - fresh[m];
    row_max[m] = fresh[m];
  }
  store(factor, exp_below(load(factor)));
  for (int m = 0; m < rows; ++m) {
    float* row = scores + m * kBlock;
    const F16 shift = set1(fresh[m]);
    F16 e[4];
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      e[u] = zero();
      if (u >= units) continue;
      e[u] = exp_below(load(row + u * kLanes) - shift);
      store(row + u * kLanes, e[u]);
    }
    wide[m] = (e[0] + e[1]) + (e[2] + e[3]);
  }
  _mm256_storeu_ps(sum_of, sums(wide));
  for (int m = 0; m < rows; ++m) {
    alpha[m] = factor[m];
    row_sum[m] = __builtin_fmaf(row_sum[m], factor[m], sum_of[m]);
  }
}

// Row of the key/value tensors that holds the first position of block j.
inline int64_t block_row(const AttentionTile& t, int64_t j) {
  return t.blocks ? t.blocks[j] * kBlock : t.kv_begin + j * kBlock;
}

// Asks for the keys and values of block j ahead of time; rows of one head are apart, which hides them from
// the processor's own prefetch.
inline void prefetch_block(const AttentionTile& t, int64_t j, int64_t last) {
  const int64_t keys = min_of(kBlock, last + 1 - j * kBlock), row = block_row(t, j);
  for (int64_t r = 0; r < keys; ++r) {
    const int64_t at = (row + r) * t.kv_stride;
    for (int64_t d = 0; d < t.head_dim; d += kLanes) {
      _mm_prefetch(reinterpret_cast<const char*>(t.k + at + d), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(t.v + at + d), _MM_HINT_T1);
    }
  }
}

// Reads one float of every cache line of a range, in order, so that the processor streams it in; packing
// alone walks many rows at once, at half the speed of memory.
inline void touch(const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) (void)*static_cast<const volatile float*>(from + i);
}

// Packs block j for all groups.
inline void pack_block(const AttentionTile& t, const ForwardScratch& s, int64_t j, int64_t last) {
  const int64_t D = t.head_dim, keys = min_of(kBlock, last + 1 - j * kBlock);
  const int64_t at = block_row(t, j) * t.kv_stride;
  if (t.groups > 1) {
    const int64_t n = (keys - 1) * t.kv_stride + t.groups * D;
    touch(t.k + at, n), touch(t.v + at, n);
  }
  pack_transposed(t.k + at, t.kv_stride, keys, t.groups * D, s.k_block);
  for (int64_t r = 0; r < keys; ++r) {
    for (int64_t g = 0; g < t.groups; ++g) {
      pack_row(t.v + at + r * t.kv_stride + g * D, D, 1.0f, kBlock, r,
               s.v_block + g * s.chunks * kBlock * kBlock);
    }
  }
}

// o = alpha * o + P V for a register tile of rows. Keys that all its rows see go through the tile; a row's
// keys before and after go alone, so that a key it must not see never meets its sums, whatever that key
// holds.
inline void add_values(int rows, int units, const Seen* seen, const float* p, const float* alpha,
                       const float* v, float* o) {
  int64_t lo_max = 0, lo_min = kBlock, hi_min = kBlock, hi_max = 0;
  for (int m = 0; m < rows; ++m) {
    lo_min = min_of(lo_min, seen[m].lo), lo_max = max_of(lo_max, seen[m].lo);
    hi_min = min_of(hi_min, seen[m].hi), hi_max = max_of(hi_max, seen[m].hi);
  }
  const bool shared = lo_max < hi_min;
  if (!shared || lo_min < lo_max) {
    for (int m = 0; m < rows; ++m) {
      const int64_t lo = seen[m].lo, keys = max_of(0, (shared ? lo_max : seen[m].hi) - lo);
      product(1, units, p + m * kBlock + lo, 0, v + lo * kBlock, keys, o + m * kBlock, alpha + m);
    }
    alpha = kOnes;
  }
  if (!shared) return;
  product(rows, units, p + lo_max, 0, v + lo_max * kBlock, hi_min - lo_max, o, alpha);
  for (int m = 0; m < rows && hi_min < hi_max; ++m) {
    const int64_t rest = seen[m].hi - hi_min;
    if (rest > 0)
      product(1, units, p + m * kBlock + hi_min, 0, v + hi_min * kBlock, rest, o + m * kBlock, kOnes);
  }
}

// Takes the packed block j into the softmax and the sums of every row of group g that sees a key of it.
inline void visit_block(const AttentionTile& t, const ForwardScratch& s, int64_t g, int64_t j) {
  const int64_t D = t.head_dim, M = s.rows, base = j * kBlock, chunk = M * kBlock;
  float *q = s.q + g * s.chunks * chunk, *o = s.o + g * s.chunks * chunk;
  const float *k_block = s.k_block + g * D * kBlock, *v_block = s.v_block + g * s.chunks * kBlock * kBlock;
  for (int64_t r0 = 0; r0 < M; r0 += kTileRows) {
    const int rows = static_cast<int>(min_of(kTileRows, M - r0));
    Seen seen[kTileRows];
    int64_t most = 0;
    bool any = false;
    for (int m = 0; m < rows; ++m) {
      seen[m] = seen_keys(t.first + (r0 + m) / t.heads, base, t.window);
      most = max_of(most, seen[m].hi);
      any |= seen[m].lo < seen[m].hi;
    }
    if (!any) continue;
    const int units = static_cast<int>((most + kLanes - 1) / kLanes);
    product(rows, units, q + r0 * kBlock, chunk, k_block, D, s.scores, nullptr);
    float alpha[kTileRows];
    for (int m = 0; m < rows;) {
      int n = 0;  // a row that sees no key of this block keeps its state
      while (m + n < rows && seen[m + n].lo < seen[m + n].hi) ++n;
      if (n > 0) {
        const int64_t state = g * M + r0 + m;
        softmax_step(n, units, seen + m, s.scores + m * kBlock, s.row_max + state, s.row_sum + state,
                     alpha + m);
      } else {
        alpha[m] = 1.0f, n = 1;
      }
      m += n;
    }
    for (int64_t c = 0; c < s.chunks; ++c) {
      add_values(rows, chunk_units(D, c), seen, s.scores, alpha, v_block + c * kBlock * kBlock,
                 o + c * chunk + r0 * kBlock);
    }
  }
}

void attention(const AttentionTile& t, float* scratch) {
  const int64_t D = t.head_dim, R = t.heads, M = t.positions * R;
  const ForwardScratch s(scratch, t.groups, M, D);
  const int64_t group_size = s.chunks * M * kBlock;
  for (int64_t g = 0; g < t.groups; ++g) {
    for (int64_t r = 0; r < M; ++r) {
      pack_row(t.q + r / R * t.q_stride + (g * R + r % R) * D, D, t.scale, M, r, s.q + g * group_size);
      s.row_max[g * M + r] = -__builtin_inff();
      s.row_sum[g * M + r] = 0.0f;
    }
  }
  fill_zero(s.o, t.groups * group_size);

  const int64_t last = t.first + t.positions - 1, last_block = last / kBlock;
  const int64_t begin = t.window > 0 ? max_of(0, t.first + 1 - t.window) / kBlock : 0;
  for (int64_t j = begin; j <= last_block; ++j) {
    if (t.groups == 1 && j < last_block) prefetch_block(t, j + 1, last);
    pack_block(t, s, j, last);
    for (int64_t g = 0; g < t.groups; ++g) visit_block(t, s, g, j);
  }

  for (int64_t i = 0; i < t.groups * M; ++i) {
    const int64_t g = i / M, r = i % M, position = r / R, head = g * R + r % R;
    const float total = static_cast<float>(log(static_cast<double>(s.row_sum[i])));
    t.lse[position * t.lse_stride + head] = s.row_max[i] + total;
    const F16 denominator = set1(s.row_sum[i]);
    float* out = t.o + position * t.q_stride + head * D;
    for (int64_t d = 0; d < D; d += kLanes) {
      const F16 x =
          load(s.o + g * group_size + d / kBlock * M * kBlock + r * kBlock + d % kBlock) / denominator;
      D - d >= kLanes ? store(out + d, x) : store_n(out + d, x, D - d);
    }
  }
}

// ---------------------------------------------------------------- backward

void attention_delta(const float* dout, const float* o, int64_t rows, int64_t head_dim, float* delta) {
  for (int64_t r = 0; r < rows; ++r, dout += head_dim, o += head_dim) {
    F16 acc = zero();
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) acc = fma(load(dout + d), load(o + d), acc);
    if (d < head_dim) acc = fma(load_n(dout + d, head_dim - d), load_n(o + d, head_dim - d), acc);
    delta[r] = sum(acc);
  }
}

// What a (query tile, key block) pair works on; every matrix is chunked.
struct GradScratch {
  int64_t rows;                            // capacity of a query tile
  float *q, *dout, *dq;                    // [chunks][M][64]
  float *p, *ds;                           // [M][64]
  float *lse, *delta;                      // [M]
  float *k, *k_transposed, *v_transposed;  // a key block: [chunks][64][64], [D][64], [D][64]
  float *dk, *dv;                          // [chunks][64][64]

  GradScratch(float* scratch, int64_t heads, int64_t head_dim)
      : rows(attention_grad_positions(heads) * heads) {
    const int64_t chunks = num_chunks(head_dim), tile = chunks * rows * kBlock,
                  block = chunks * kBlock * kBlock;
    float* next = scratch;
    const auto take = [&next](int64_t n) {
      float* here = next;
      next += n;
      return here;
    };
    q = take(tile), dout = take(tile), dq = take(tile);
    p = take(rows * kBlock), ds = take(rows * kBlock);
    k = take(block), k_transposed = take(block), v_transposed = take(block), dk = take(block),
    dv = take(block);
    lse = take(rows), delta = take(rows);
  }
};

int64_t attention_grad_scratch(int64_t heads, int64_t head_dim) {
  const int64_t chunks = num_chunks(head_dim), rows = attention_grad_positions(heads) * heads;
  return 3 * chunks * rows * kBlock + 2 * rows * kBlock + 5 * chunks * kBlock * kBlock + 2 * rows;
}

// Query positions [first, first + positions) of the sequence.
struct QueryTile {
  int64_t first, positions, rows;
};
inline QueryTile query_tile(const AttentionGrad& t, int64_t index) {
  const int64_t step = attention_grad_positions(t.heads), first = index * step;
  const int64_t positions = min_of(step, t.length - first);
  return {first, positions, positions * t.heads};
}

inline void pack_queries(const AttentionGrad& t, const QueryTile& tile, const GradScratch& s) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t position = tile.first + r / t.heads, head = r % t.heads;
    const int64_t at = position * t.q_stride + head * t.head_dim;
    pack_row(t.q + at, t.head_dim, t.scale, tile.rows, r, s.q);
    pack_row(t.dout + at, t.head_dim, 1.0f, tile.rows, r, s.dout);
    s.lse[r] = t.lse[position * t.lse_stride + head];
    s.delta[r] = t.delta[position * t.lse_stride + head];
  }
}

inline int64_t pack_keys(const AttentionGrad& t, int64_t block, const GradScratch& s) {
  const int64_t base = block * kBlock, keys = min_of(kBlock, t.length - base);
  const float *k = t.k + base * t.kv_stride, *v = t.v + base * t.kv_stride;
  pack_rows(k, t.kv_stride, keys, t.head_dim, s.k);
  pack_transposed(k, t.kv_stride, keys, t.head_dim, s.k_transposed);
  pack_transposed(v, t.kv_stride, keys, t.head_dim, s.v_transposed);
  return keys;
}

// P and dS of a packed (query tile, key block) pair, zero where hidden; the number of keys any row sees.
inline int64_t probabilities(const AttentionGrad& t, const QueryTile& tile, int64_t base,
                             const GradScratch& s) {
  int64_t most = 0;
  for (int64_t r0 = 0; r0 < tile.rows; r0 += kTileRows) {
    const int rows = static_cast<int>(min_of(kTileRows, tile.rows - r0));
    const int64_t hi = seen_keys(tile.first + (r0 + rows - 1) / t.heads, base, t.window).hi;
    const int units = static_cast<int>((hi + kLanes - 1) / kLanes);
    most = max_of(most, hi);
    float *p = s.p + r0 * kBlock, *ds = s.ds + r0 * kBlock;
    product(rows, units, s.q + r0 * kBlock, tile.rows * kBlock, s.k_transposed, t.head_dim, p, nullptr);
    product(rows, units, s.dout + r0 * kBlock, tile.rows * kBlock, s.v_transposed, t.head_dim, ds, nullptr);
    for (int m = 0; m < rows; ++m) {
      const Seen seen = seen_keys(tile.first + (r0 + m) / t.heads, base, t.window);
      const F16 lse = set1(s.lse[r0 + m]), delta = set1(s.delta[r0 + m]);
      for (int64_t u = 0; u < 4; ++u) {
        const int64_t at = m * kBlock + u * kLanes;
        F16 prob = zero(), grad = zero();
        if (u < units) {
          prob = exp_below(load(p + at) - lse);
          grad = prob * (load(ds + at) - delta);
          if (!whole(seen, u)) {
            const Mask16 lanes = lanes_of(seen, u);
            prob = select(lanes, prob, zero()), grad = select(lanes, grad, zero());
          }
        }
        store(p + at, prob);
        store(ds + at, grad);
      }
    }
  }
  return most;
}

// dk and dv of the block += this tile's queries, in order; queries before a key are left out.
inline void add_to_keys(const AttentionGrad& t, const QueryTile& tile, int64_t base, int64_t keys,
                        const GradScratch& s) {
  for (int64_t m0 = 0; m0 < keys; m0 += kTileRows) {
    const int rows = static_cast<int>(min_of(kTileRows, keys - m0));
    const int64_t from = max_of(0, base + m0 - tile.first) * t.heads;
    int64_t to = tile.rows;
    if (t.window > 0) to = min_of(to, (base + m0 + rows - 1 + t.window - tile.first) * t.heads);
    if (from >= to) continue;
    for (int64_t c = 0; c < num_chunks(t.head_dim); ++c) {
      const int units = chunk_units(t.head_dim, c);
      const int64_t in = c * tile.rows * kBlock + from * kBlock, out = c * kBlock * kBlock + m0 * kBlock;
      product<true>(rows, units, s.p + from * kBlock + m0, 0, s.dout + in, to - from, s.dv + out, kOnes);
      product<true>(rows, units, s.ds + from * kBlock + m0, 0, s.q + in, to - from, s.dk + out, kOnes);
    }
  }
}

// The tile's dq += dS K over this block's keys, in order.
inline void add_to_queries(const AttentionGrad& t, const QueryTile& tile, int64_t keys,
                           const GradScratch& s) {
  for (int64_t r0 = 0; r0 < tile.rows; r0 += kTileRows) {
    const int rows = static_cast<int>(min_of(kTileRows, tile.rows - r0));
    for (int64_t c = 0; c < num_chunks(t.head_dim); ++c) {
      product(rows, chunk_units(t.head_dim, c), s.ds + r0 * kBlock, 0, s.k + c * kBlock * kBlock, keys,
              s.dq + c * tile.rows * kBlock + r0 * kBlock, kOnes);
    }
  }
}

inline void write_rows(const float* chunked, int64_t rows, int64_t r, int64_t head_dim, float scale,
                       float* out) {
  const F16 factor = set1(scale);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const F16 x = load(chunked + d / kBlock * rows * kBlock + r * kBlock + d % kBlock) * factor;
    head_dim - d >= kLanes ? store(out + d, x) : store_n(out + d, x, head_dim - d);
  }
}

inline void write_queries(const AttentionGrad& t, const QueryTile& tile, float scale, const GradScratch& s) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t at = (tile.first + r / t.heads) * t.q_stride + r % t.heads * t.head_dim;
    write_rows(s.dq, tile.rows, r, t.head_dim, scale, t.dq + at);
  }
}

void attention_grad_keys(const AttentionGrad& t, int64_t block_begin, int64_t block_end, bool with_dq,
                         float* scratch) {
  const GradScratch s(scratch, t.heads, t.head_dim);
  const int64_t D = t.head_dim, chunks = num_chunks(D), step = attention_grad_positions(t.heads);
  for (int64_t j = block_begin; j < block_end; ++j) {
    const int64_t base = j * kBlock, keys = pack_keys(t, j, s);
    fill_zero(s.dk, chunks * kBlock * kBlock);
    fill_zero(s.dv, chunks * kBlock * kBlock);
    int64_t end = t.length;
    if (t.window > 0) end = min_of(end, base + keys - 1 + t.window);
    for (int64_t i = base / step; i * step < end; ++i) {
      const QueryTile tile = query_tile(t, i);
      pack_queries(t, tile, s);
      const int64_t seen = probabilities(t, tile, base, s);
      add_to_keys(t, tile, base, keys, s);
      if (!with_dq) continue;
      // The chain of dq goes on from block to block in the output itself, unscaled until its last block.
      const int64_t first_block = t.window > 0 ? max_of(0, tile.first + 1 - t.window) / kBlock : 0;
      if (j == first_block) {
        fill_zero(s.dq, chunks * tile.rows * kBlock);
      } else {
        for (int64_t r = 0; r < tile.rows; ++r) {
          const int64_t at = (tile.first + r / t.heads) * t.q_stride + r % t.heads * D;
          pack_row(t.dq + at, D, 1.0f, tile.rows, r, s.dq);
        }
      }
      add_to_queries(t, tile, seen, s);
      write_queries(t, tile, j == (tile.first + tile.positions - 1) / kBlock ? t.scale : 1.0f, s);
    }
    for (int64_t r = 0; r < keys; ++r) {
      write_rows(s.dk, kBlock, r, D, 1.0f, t.dk + (base + r) * t.kv_stride);
      write_rows(s.dv, kBlock, r, D, 1.0f, t.dv + (base + r) * t.kv_stride);
    }
  }
}

void attention_grad_queries(const AttentionGrad& t, int64_t index, float* scratch) {
  const GradScratch s(scratch, t.heads, t.head_dim);
  const QueryTile tile = query_tile(t, index);
  pack_queries(t, tile, s);
  fill_zero(s.dq, num_chunks(t.head_dim) * tile.rows * kBlock);
  const int64_t begin = t.window > 0 ? max_of(0, tile.first + 1 - t.window) / kBlock : 0;
  for (int64_t j = begin; j <= (tile.first + tile.positions - 1) / kBlock; ++j) {
    pack_keys(t, j, s);
    add_to_queries(t, tile, probabilities(t, tile, j * kBlock, s), s);
  }
  write_queries(t, tile, t.scale, s);
}

}  // namespace attn
}  // namespace
}  // namespace twinkle::cpu
