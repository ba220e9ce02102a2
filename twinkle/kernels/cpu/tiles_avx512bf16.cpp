// Blocks of products by VDPBF16PS, which adds the products of two pairs of bf16 to an fp32 sum. Compiled with
// its flags and called only where isa.cpp found it. An element is one fp32 chain over the pairs in ascending
// order, of each pair the odd element first, from zero or from what C holds (TileBlock::from_zero).
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "twinkle/kernels/cpu/tile_block.h"

namespace twinkle::ops::cpu {
#if defined(__x86_64__)
namespace {

constexpr int kRows = 8;    // of A at a time, within a tile of 16
constexpr int kPanels = 3;  // of B at a time
constexpr int kPair = 32;   // elements in two rows of a panel

inline __m256i load_16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Puts two rows of a panel, sixteen and sixteen, in pairs.
inline __m512i pair_order() {
  return _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
}

// Where memory is asked for beforehand, in elements from the place in B that is read: the processor's own
// prefetcher stops at every page, and many rows would wait for memory first and compute then.
struct Ahead {
  int64_t here;  // in all steps but the last kLastSteps
  int64_t last;
};
constexpr int64_t kNear = 1024;                        // further on in the same panel
constexpr int64_t kLastSteps = kNear / kTileElements;  // then that is in the next panel

// MR rows by NP panels, all steps. Lanes past `last` of the last panel are not in C.
template <bool kPacked, int MR, int NP>
void square(const uint16_t* a, const uint16_t* b, int64_t b_panel, float* c, int64_t c_row, int64_t steps,
            bool from_zero, __mmask16 last, Ahead ahead) {
  __m512 sum[MR][NP];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int p = 0; p < NP; ++p) {
      const __mmask16 lanes = p + 1 == NP ? last : static_cast<__mmask16>(0xffff);
      sum[m][p] = from_zero ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, c + m * c_row + p * 16);
    }
  }
  const __m512i order = pair_order();
  for (int64_t s = 0; s < steps; ++s, a += kTileElements, b += kTileElements) {
    const int64_t far = s + kLastSteps < steps ? ahead.here : ahead.last;
#pragma GCC unroll 4
    for (int q = 0; q < 16; ++q) {
      __m512bh columns[NP];
#pragma GCC unroll 8
      for (int p = 0; p < NP; ++p) {
        const uint16_t* at = b + p * b_panel + q * kPair;
        __m512i bits = _mm512_loadu_si512(at);
        if constexpr (!kPacked) {
          bits = _mm512_permutexvar_epi16(order, bits);
          _mm_prefetch(reinterpret_cast<const char*>(at + far), _MM_HINT_T0);
        }
        columns[p] = reinterpret_cast<__m512bh>(bits);
      }
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        int32_t pair;
        __builtin_memcpy(&pair, a + m * kTileStep + 2 * q, sizeof(pair));
        const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
        for (int p = 0; p < NP; ++p) sum[m][p] = _mm512_dpbf16_ps(sum[m][p], row, columns[p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int p = 0; p < NP; ++p) {
      const __mmask16 lanes = p + 1 == NP ? last : static_cast<__mmask16>(0xffff);
      _mm512_mask_storeu_ps(c + m * c_row + p * 16, lanes, sum[m][p]);
    }
  }
}

using SquareFn = void (*)(const uint16_t*, const uint16_t*, int64_t, float*, int64_t, int64_t, bool,
                          __mmask16, Ahead);

// By number of rows, 0 unused.
template <bool kPacked, int NP, int... MR>
struct Squares {
  static constexpr SquareFn fn[] = {nullptr, &square<kPacked, MR, NP>...};
};
template <bool kPacked, int NP>
using SquaresOf = Squares<kPacked, NP, 1, 2, 3, 4, 5, 6, 7, 8>;

// A few panels stay in the first cache while all rows pass by.
template <bool kPacked>
void walk(const TileBlock& block) {
  const int64_t panels = (block.n + 15) / 16;
  const auto lanes_of = [&](int64_t end) {
    const int64_t past = end * 16 - block.n;
    return static_cast<__mmask16>(0xffff >> (past > 0 ? past : 0));
  };
  int64_t panel = 0;
  const auto column = [&](const SquareFn* fns, int64_t count) {
    for (int64_t row = 0; row < block.m; row += kRows) {
      const int64_t rows = block.m - row < kRows ? block.m - row : kRows;
      // The first rows read on in their panels, and from the ends of those in the next ones; the second rows,
      // which find B in the cache, have it brought the next ones.
      const int64_t next = count * block.b_panel;
      const Ahead ahead = row == 0       ? Ahead{kNear, kNear - block.b_panel + next}
                          : row == kRows ? Ahead{next, next}
                                         : Ahead{0, 0};
      fns[rows](block.a + row / 16 * block.a_tile + row % 16 * kTileStep, block.b + panel * block.b_panel,
                block.b_panel, block.c + row * block.c_row + panel * 16, block.c_row, block.steps,
                block.from_zero, lanes_of(panel + count), ahead);
    }
    panel += count;
  };
  while (panel + kPanels <= panels) column(SquaresOf<kPacked, kPanels>::fn, kPanels);
  if (panel + 2 <= panels) column(SquaresOf<kPacked, 2>::fn, 2);
  if (panel < panels) column(SquaresOf<kPacked, 1>::fn, 1);
}

// 16 x 16 words: within 128-bit lanes by fours, then the lanes themselves.
inline void transpose_words(__m512i* r, uint16_t* out) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                  d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88),
                  b = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd),
                  d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    _mm512_storeu_si512(out + i * kPair, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(out + (i + 8) * kPair, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(out + (i + 4) * kPair, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_storeu_si512(out + (i + 12) * kPair, _mm512_shuffle_i32x4(c, d, 0xdd));
  }
}

}  // namespace

void tile_block_avx512bf16(const TileBlock& block) { block.packed ? walk<true>(block) : walk<false>(block); }

void pack_a_avx512bf16(const float* a, int64_t a_stride, int64_t rows, int64_t reduced, uint16_t* out) {
  for (int64_t s = 0; s * kTileStep < reduced; ++s, out += kTileElements) {
    const int64_t left = reduced - s * kTileStep;
    const auto lanes = static_cast<__mmask32>(left < kTileStep ? (uint64_t{1} << left) - 1 : 0xffffffffu);
    for (int64_t i = 0; i < 16; ++i) {
      __m512i bits = _mm512_setzero_si512();
      if (i < rows) {
        const float* at = a + i * a_stride + s * kTileStep;
        const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), at);
        const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), at + 16);
        bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      }
      _mm512_storeu_si512(out + i * kTileStep, bits);
    }
  }
}

// A row of a panel holds eight pairs of steps of the transposed product.
void pack_pairs_transposed_avx512bf16(const uint16_t* in0, const uint16_t* in1, int64_t cols, uint16_t* out) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int64_t j = 0; j < 16; ++j) {
    rows[j] = _mm512_setzero_si512();
    if (j >= cols) continue;
    rows[j] = _mm512_castsi256_si512(load_16(in0 + j * 16));
    rows[j] = _mm512_inserti64x4(rows[j], in1 == nullptr ? _mm256_setzero_si256() : load_16(in1 + j * 16), 1);
  }
  transpose_words(rows, out);
}

double burn_avx512bf16(int64_t rounds, float* sink) {
  constexpr int kChains = 12;
  __m512 sum[kChains];
  const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3c003c00)),
                 y = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 8
    for (int u = 0; u < 4; ++u) {
#pragma GCC unroll 16
      for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], x, y);
    }
  }
  float total = 0;
  for (int i = 0; i < kChains; ++i) total += _mm512_cvtss_f32(sum[i]);
  sink[0] = total;
  return static_cast<double>(rounds) * 4 * kChains * 64;
}
#endif
}  // namespace twinkle::ops::cpu
