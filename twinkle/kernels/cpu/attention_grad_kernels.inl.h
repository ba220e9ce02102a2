// Attention backward: P is computed again from the log-sum-exp, with the chains of the forward pass. dq is
// one chain over keys ascending; dk and dv are one chain over queries ascending (position, then head), from
// zero in each sequence. A task is a few blocks of keys; tasks of one sequence and group may run on several
// threads, and take turns at the dq of a tile of queries in the order of their blocks. Scratch is the
// caller's. Outputs are written (=).
#pragma once

#include "twinkle/kernels/cpu/attention_tiles.inl.h"

namespace twinkle::ops::cpu {
namespace {
namespace attn {

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
  float *k, *k_transposed, *v_transposed;  // the current key block: [chunks][64][64], [D][64], [D][64]
  float *dk, *dv;                          // [chunks][64][64]
  int64_t block_size;                      // from a matrix of one key block to that of the next

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
    block_size = 5 * block;
    take((kAttentionGradBlocks - 1) * block_size);
    lse = take(rows), delta = take(rows);
  }

  /// The same with the matrices of the task's key block b.
  GradScratch of_block(int64_t b) const {
    GradScratch s = *this;
    const int64_t at = b * block_size;
    s.k += at, s.k_transposed += at, s.v_transposed += at, s.dk += at, s.dv += at;
    return s;
  }
};

int64_t attention_grad_scratch(int64_t heads, int64_t head_dim) {
  const int64_t chunks = num_chunks(head_dim), rows = attention_grad_positions(heads) * heads;
  return 3 * chunks * rows * kBlock + 2 * rows * kBlock +
         kAttentionGradBlocks * 5 * chunks * kBlock * kBlock + 2 * rows;
}

// Query positions [first, first + positions) of the sequence; `row` is the first one's place among its
// queries.
struct QueryTile {
  int64_t first, row, positions, rows;
};
inline QueryTile query_tile(const AttentionGrad& t, int64_t index) {
  const int64_t step = attention_grad_positions(t.heads), row = index * step, first = t.first + row;
  const int64_t positions = min_of(step, t.length - first);
  return {first, row, positions, positions * t.heads};
}

inline void pack_queries(const AttentionGrad& t, const QueryTile& tile, const GradScratch& s) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t row = tile.row + r / t.heads, head = r % t.heads;
    const int64_t at = row * t.q_stride + head * t.head_dim;
    pack_row(t.q + at, t.head_dim, t.scale, tile.rows, r, s.q);
    pack_row(t.dout + at, t.head_dim, 1.0f, tile.rows, r, s.dout);
    s.lse[r] = t.lse[row * t.lse_stride + head];
    s.delta[r] = t.delta[row * t.lse_stride + head];
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
    const int64_t at = (tile.row + r / t.heads) * t.q_stride + r % t.heads * t.head_dim;
    write_rows(s.dq, tile.rows, r, t.head_dim, scale, t.dq + at);
  }
}

// Asks for what a tile of queries will pack: rows of one group are apart, which hides them from the
// processor's own prefetch.
inline void prefetch_queries(const AttentionGrad& t, const QueryTile& tile) {
  const int64_t n = t.heads * t.head_dim;
  for (int64_t p = tile.row; p < tile.row + tile.positions; ++p) {
    for (int64_t i = 0; i < n; i += kLanes) {
      _mm_prefetch(reinterpret_cast<const char*>(t.q + p * t.q_stride + i), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(t.dout + p * t.q_stride + i), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(t.dq + p * t.q_stride + i), _MM_HINT_T1);
    }
  }
}

void attention_grad(const AttentionGrad& t, int64_t block_begin, int64_t block_end, float* scratch) {
  const GradScratch s(scratch, t.heads, t.head_dim);
  const int64_t D = t.head_dim, chunks = num_chunks(D), step = attention_grad_positions(t.heads);
  int64_t keys[kAttentionGradBlocks] = {};
  for (int64_t j = block_begin; j < block_end; ++j) {
    const GradScratch b = s.of_block(j - block_begin);
    keys[j - block_begin] = pack_keys(t, j, b);
    fill_zero(b.dk, chunks * kBlock * kBlock);
    fill_zero(b.dv, chunks * kBlock * kBlock);
  }
  int64_t end = t.length - t.first;
  if (t.window > 0) end = min_of(end, min_of(t.length, block_end * kBlock) - 1 + t.window - t.first);
  for (int64_t i = max_of(0, block_begin * kBlock - t.first) / step; i * step < end; ++i) {
    const QueryTile tile = query_tile(t, i);
    // Blocks of the task with a key that some row of the tile sees.
    const int64_t oldest = t.window > 0 ? max_of(0, tile.first + 1 - t.window) / kBlock : 0;
    const int64_t newest = (tile.first + tile.positions - 1) / kBlock;
    const int64_t from = max_of(block_begin, oldest), to = min_of(block_end, newest + 1);
    pack_queries(t, tile, s);
    if ((i + 1) * step < end) prefetch_queries(t, query_tile(t, i + 1));
    // The chain of dq goes on from task to task in the output itself, unscaled until its last block.
    if (from == oldest) {
      fill_zero(s.dq, chunks * tile.rows * kBlock);
    } else {
      wait_for_turn(t.turns, i, from);
      for (int64_t r = 0; r < tile.rows; ++r) {
        const int64_t at = (tile.row + r / t.heads) * t.q_stride + r % t.heads * D;
        pack_row(t.dq + at, D, 1.0f, tile.rows, r, s.dq);
      }
    }
    for (int64_t j = from; j < to; ++j) {
      const GradScratch b = s.of_block(j - block_begin);
      const int64_t seen = probabilities(t, tile, j * kBlock, b);
      add_to_keys(t, tile, j * kBlock, keys[j - block_begin], b);
      add_to_queries(t, tile, seen, b);
    }
    write_queries(t, tile, to == newest + 1 ? t.scale : 1.0f, s);
    if (to <= newest) end_turn(t.turns, i, to);
  }
  for (int64_t j = block_begin; j < block_end; ++j) {
    const GradScratch b = s.of_block(j - block_begin);
    for (int64_t r = 0; r < keys[j - block_begin]; ++r) {
      write_rows(b.dk, kBlock, r, D, 1.0f, t.dk + (j * kBlock + r) * t.kv_stride);
      write_rows(b.dv, kBlock, r, D, 1.0f, t.dv + (j * kBlock + r) * t.kv_stride);
    }
  }
}

}  // namespace attn
}  // namespace
}  // namespace twinkle::ops::cpu
