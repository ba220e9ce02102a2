// Row-wise, embedding and optimizer kernels, written once over simd.h and compiled for each instruction set.
// Reductions over columns run in 4 x 16 lanes, column k in lane k % 64, and end in one fixed tree. No threads
// here.
#pragma once

#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/simd.h"

namespace twinkle::ops::cpu {
namespace {
namespace rows {

using namespace simd;  // NOLINT: the vocabulary of every line below

inline F16 load_part(const float* p, int64_t n) { return n >= kLanes ? load(p) : load_n(p, n); }
inline void store_part(float* p, F16 x, int64_t n) { n >= kLanes ? store(p, x) : store_n(p, x, n); }

// fn(offset, lanes) over [0, n) in vectors of 16, the last one shorter.
template <class Fn>
inline void for_vectors(int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, kLanes);
  if (i < n) fn(i, n - i);
}

// The sum over columns of step(acc, offset, lanes), which adds a product to its lanes.
template <class Step>
inline float reduce(int64_t n, Step step) {
  F16 a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = step(a, i, kLanes), b = step(b, i + kLanes, kLanes);
    c = step(c, i + 2 * kLanes, kLanes), d = step(d, i + 3 * kLanes, kLanes);
  }
  if (i < n) a = step(a, i, min_of(kLanes, n - i));
  if (i + kLanes < n) b = step(b, i + kLanes, min_of(kLanes, n - i - kLanes));
  if (i + 2 * kLanes < n) c = step(c, i + 2 * kLanes, min_of(kLanes, n - i - 2 * kLanes));
  if (i + 3 * kLanes < n) d = step(d, i + 3 * kLanes, min_of(kLanes, n - i - 3 * kLanes));
  return sum((a + b) + (c + d));
}

void rms_norm(const float* x, const float* w, float eps, int64_t K, int64_t rows, float* y, float* rstd) {
  for (int64_t t = 0; t < rows; ++t, x += K, y += K) {
    const float squares = reduce(K, [x](F16 acc, int64_t i, int64_t n) {
      const F16 v = load_part(x + i, n);
      return fma(v, v, acc);
    });
    const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(K) + eps);
    rstd[t] = r;
    const F16 scale = set1(r);
    for_vectors(K, [=](int64_t i, int64_t n) {
      store_part(y + i, load_part(x + i, n) * scale * load_part(w + i, n), n);
    });
  }
}

void rms_norm_backward(const float* dy, const float* x, const float* w, const float* rstd, int64_t K,
                       int64_t rows, float* dx, bool accumulate) {
  for (int64_t t = 0; t < rows; ++t, dy += K, x += K, dx += K) {
    const float dot = reduce(K, [=](F16 acc, int64_t i, int64_t n) {
      return fma(load_part(dy + i, n) * load_part(w + i, n), load_part(x + i, n), acc);
    });
    const float r = rstd[t];
    const F16 scale = set1(r), along = set1(r * r * (dot / static_cast<float>(K)));
    for_vectors(K, [=](int64_t i, int64_t n) {
      const F16 dyw = load_part(dy + i, n) * load_part(w + i, n);
      const F16 grad = fnma(load_part(x + i, n), along, dyw) * scale;
      store_part(dx + i, accumulate ? load_part(dx + i, n) + grad : grad, n);
    });
  }
}

void rms_norm_weight_grad(const float* dy, const float* x, const float* rstd, int64_t K, int64_t row_begin,
                          int64_t row_end, int64_t col_begin, int64_t col_end, float* dw) {
  for (int64_t col = col_begin; col < col_end; col += 4 * kLanes) {
    F16 acc[4] = {zero(), zero(), zero(), zero()};
    const int64_t width = min_of(4 * kLanes, col_end - col);
    for (int64_t t = row_begin; t < row_end; ++t) {
      const F16 r = set1(rstd[t]);
      const float *a = dy + t * K + col, *b = x + t * K + col;
      if (width == 4 * kLanes) {
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) acc[u] = fma(load(a + u * kLanes), load(b + u * kLanes) * r, acc[u]);
      } else {
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
          const int64_t n = max_of(0, min_of(kLanes, width - u * kLanes));
          acc[u] = fma(load_n(a + u * kLanes, n), load_n(b + u * kLanes, n) * r, acc[u]);
        }
      }
    }
    for_vectors(width, [&](int64_t i, int64_t n) {
      store_part(dw + col + i, load_part(dw + col + i, n) + acc[i / kLanes], n);
    });
  }
}

void add(const float* a, const float* b, int64_t n, float* y) {
  for_vectors(n, [=](int64_t i, int64_t lanes) {
    store_part(y + i, load_part(a + i, lanes) + load_part(b + i, lanes), lanes);
  });
}

void rope(float* x, const int32_t* positions, const float* cos, const float* sin, int64_t rows, int64_t heads,
          int64_t head_dim, int64_t half, bool inverse) {
  const F16 sign = set1(inverse ? -1.0f : 1.0f);
  for (int64_t t = 0; t < rows; ++t) {
    const float *c = cos + positions[t] * half, *s = sin + positions[t] * half;
    for (int64_t h = 0; h < heads; ++h, x += head_dim) {
      for_vectors(half, [=](int64_t i, int64_t n) {
        const F16 cc = load_part(c + i, n), ss = load_part(s + i, n) * sign;
        const F16 a = load_part(x + i, n), b = load_part(x + half + i, n);
        store_part(x + i, fnma(b, ss, a * cc), n);
        store_part(x + half + i, fma(a, ss, b * cc), n);
      });
    }
  }
}

inline F16 sigmoid(F16 x) {
  const F16 one = set1(1.0f);
  return one / (one + exp(zero() - x));
}

void swiglu(const float* gate, const float* up, int64_t n, float* h) {
  for_vectors(n, [=](int64_t i, int64_t lanes) {
    const F16 g = load_part(gate + i, lanes);
    store_part(h + i, g * sigmoid(g) * load_part(up + i, lanes), lanes);
  });
}

void swiglu_backward(const float* dh, int64_t n, float* gate, float* up) {
  for_vectors(n, [=](int64_t i, int64_t lanes) {
    const F16 g = load_part(gate + i, lanes), u = load_part(up + i, lanes), d = load_part(dh + i, lanes);
    const F16 s = sigmoid(g), one = set1(1.0f);
    store_part(up + i, d * (g * s), lanes);
    store_part(gate + i, d * u * s * fma(g, one - s, one), lanes);
  });
}

struct Words {
  U16 w[4];
};

// Sixteen blocks of philox4x32 (core/rng.h) at once, one in each lane.
inline Words philox(uint64_t key, U16 c0, U16 c1, U16 c2, U16 c3) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const U16 m0 = set1(0xD2511F53u), m1 = set1(0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    U16 high0, low0, high1, low1;
    multiply_wide(c0, m0, high0, low0);
    multiply_wide(c2, m1, high1, low1);
    c0 = high1 ^ c1 ^ set1(k0);
    c1 = low1;
    c2 = high0 ^ c3 ^ set1(k1);
    c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

void dropout(const float* x, uint64_t key, uint32_t threshold, float scale, const uint64_t* sequence_key,
             const int32_t* position, int64_t K, int64_t rows, float* y) {
  static constexpr uint32_t kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const U16 lane = load(kLaneIndex), limit = set1(threshold);
  const F16 factor = set1(scale);
  for (int64_t t = 0; t < rows; ++t, x += K, y += K) {
    const U16 c1 = set1(static_cast<uint32_t>(position[t]));
    const U16 c2 = set1(static_cast<uint32_t>(sequence_key[t]));
    const U16 c3 = set1(static_cast<uint32_t>(sequence_key[t] >> 32));
    for (int64_t col = 0; col < K; col += 64) {
      const U16 c0 = lane + set1(static_cast<uint32_t>(16 * (col / 64)));
      const Words words = philox(key, c0, c1, c2, c3);
      for (int u = 0; u < 4 && col + u * kLanes < K; ++u) {
        const int64_t i = col + u * kLanes, n = min_of(kLanes, K - i);
        const Mask16 dropped = less(shift_right_8(words.w[u]), limit);
        store_part(y + i, select(dropped, zero(), load_part(x + i, n) * factor), n);
      }
    }
  }
}

inline float from_bfloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return __builtin_bit_cast(float, wide);
}

void read_panel_row(const uint16_t* first, bool half, int64_t K, float* out) {
  if (half) {
    for (int64_t k = 0; k < K; ++k) out[k] = _cvtsh_ss(first[k * 16]);
  } else {
    for (int64_t k = 0; k < K; ++k) out[k] = from_bfloat(first[k * 16]);
  }
}

void read_panel_row_float(const float* first, int64_t K, float* out) {
  for (int64_t k = 0; k < K; ++k) out[k] = first[k * 16];
}

void add_to_panel_row(const float* dout, const int32_t* rows, int64_t count, int64_t K, int64_t col_begin,
                      int64_t col_end, float* first) {
  for_vectors(col_end - col_begin, [=](int64_t i, int64_t n) {
    F16 acc = zero();
    for (int64_t r = 0; r < count; ++r) acc = acc + load_part(dout + rows[r] * K + col_begin + i, n);
    float lanes[16];
    store(lanes, acc);
    for (int64_t j = 0; j < n; ++j) first[(col_begin + i + j) * 16] += lanes[j];
  });
}

void adam(const float* g, int64_t n, const AdamConstants& c, float* p, float* m, float* v) {
  for_vectors(n, [=](int64_t i, int64_t lanes) {
    F16 grad = load_part(g + i, lanes) * set1(c.grad_scale);
    F16 weight = load_part(p + i, lanes) * set1(c.keep);
    grad = grad + set1(c.decay) * weight;
    const F16 m_old = load_part(m + i, lanes), v_old = load_part(v + i, lanes);
    const F16 m_new = fma(set1(c.weight1), grad - m_old, m_old);
    const F16 v_new = v_old * set1(c.beta2) + set1(c.weight2) * grad * grad;
    const F16 denominator = sqrt(v_new) / set1(c.root2) + set1(c.eps);
    weight = weight + set1(c.minus_step_size) * m_new / denominator;
    store_part(m + i, m_new, lanes);
    store_part(v + i, v_new, lanes);
    store_part(p + i, weight, lanes);
  });
}

double sum_of_squares(const float* x, int64_t n) {
  D16 a = zero_d(), b = zero_d();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = add_squares(a, load(x + i));
    b = add_squares(b, load(x + i + kLanes));
  }
  if (i < n) a = add_squares(a, load_part(x + i, min_of(kLanes, n - i)));
  if (i + kLanes < n) b = add_squares(b, load_part(x + i + kLanes, n - i - kLanes));
  return sum(a) + sum(b);
}

}  // namespace rows
}  // namespace
}  // namespace twinkle::ops::cpu
