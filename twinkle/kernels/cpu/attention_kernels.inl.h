// Attention forward, written once over simd.h and compiled for each instruction set. A tile of queries walks
// the key blocks from position 0 (or from its window's first block): scores are one FMA chain over the head
// dim, the softmax state of a row changes only at blocks it sees, and P V is one FMA chain over the keys it
// sees, in order. So how rows are grouped into tiles never shows in their bits. No threads here; scratch is
// the caller's.
#pragma once

#include <math.h>

#include "twinkle/kernels/cpu/attention_tiles.inl.h"

namespace twinkle::ops::cpu {
namespace {
namespace attn {

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
  if (t.block_rows) return t.block_rows[j];
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
  constexpr int64_t kAhead = 6;  // positions; rows of one group are apart
  for (int64_t g = 0; g < t.groups; ++g) {
    for (int64_t r = 0; r < M; ++r) {
      if (r % R == 0 && r / R + kAhead < t.positions) {
        const float* next = t.q + (r / R + kAhead) * t.q_stride + g * R * D;
        for (int64_t i = 0; i < R * D; i += kLanes) {
          _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T0);
        }
      }
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

}  // namespace attn
}  // namespace
}  // namespace twinkle::ops::cpu
