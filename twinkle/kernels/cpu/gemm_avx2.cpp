// The kernel table for AVX2 + FMA + F16C. Compiled with those flags, so nothing of the standard library is
// used.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "twinkle/kernels/cpu/gemm_kernels.h"

namespace twinkle::ops::cpu {
#if defined(__x86_64__)
namespace {

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kTileRows = 6;
constexpr int kTilePanels = 1;
#define TWINKLE_TILE_ROWS 6

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec set1(const float* p) { return _mm256_broadcast_ss(p); }
inline Vec value(float x) { return _mm256_set1_ps(x); }
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec round_nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline bool any_equal(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0; }

// The first `cols` (under 16) floats.
inline void copy_part(float* to, const float* from, int64_t cols) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t first = 0; first < cols; first += 8) {
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(cols - first)), lane);
    _mm256_maskstore_ps(to + first, mask, _mm256_maskload_ps(from + first, mask));
  }
}

// p * 2^n for n < 128; 0 where x is so low that the result would be subnormal.
inline Vec scale_by_power(Vec p, Vec n, Vec x) {
  const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  const Vec result = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33654022216797f), _CMP_LT_OQ), result);
}

inline Vec load_bf16(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#include "twinkle/kernels/cpu/narrow.inc"

inline void transpose_8x8(Vec* r, float* out, int64_t out_stride) {
  const Vec a0 = _mm256_unpacklo_ps(r[0], r[1]), a1 = _mm256_unpackhi_ps(r[0], r[1]);
  const Vec a2 = _mm256_unpacklo_ps(r[2], r[3]), a3 = _mm256_unpackhi_ps(r[2], r[3]);
  const Vec a4 = _mm256_unpacklo_ps(r[4], r[5]), a5 = _mm256_unpackhi_ps(r[4], r[5]);
  const Vec a6 = _mm256_unpacklo_ps(r[6], r[7]), a7 = _mm256_unpackhi_ps(r[6], r[7]);
  const Vec b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
  const Vec b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
  const Vec b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
  const Vec b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
  store(out + 0 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x20));
  store(out + 1 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x20));
  store(out + 2 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x20));
  store(out + 3 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x20));
  store(out + 4 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x31));
  store(out + 5 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x31));
  store(out + 6 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x31));
  store(out + 7 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x31));
}

// out[i][j] = in[j][i], 16 x 16.
template <typename Type, typename Element>
void transpose_16x16(Type type, const Element* in, int64_t in_stride, float* out) {
  for (int j = 0; j < 16; j += 8) {
    for (int i = 0; i < 16; i += 8) {
      Vec rows[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) rows[r] = load_as(type, in + (j + r) * in_stride + i);
      transpose_8x8(rows, out + i * 16 + j, 16);
    }
  }
}

// out[i][j] = in[j][i], 16 x 16 of 16-bit elements: by eights within 128-bit lanes, then the lanes.
void transpose_bits(const uint16_t* in, int64_t in_stride, uint16_t* out, int64_t out_stride) {
  for (int half = 0; half < 16; half += 8) {  // eight columns of out
    __m256i r[8], t[8];
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + (half + i) * in_stride));
    }
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm256_unpacklo_epi32(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm256_unpackhi_epi32(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm256_unpacklo_epi32(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm256_unpackhi_epi32(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {  // rows 2i and 2i + 1 of out in the low lane, 8 more in the high one
      t[2 * i] = _mm256_unpacklo_epi64(r[i], r[i + 4]);
      t[2 * i + 1] = _mm256_unpackhi_epi64(r[i], r[i + 4]);
    }
    for (int i = 0; i < 8; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * out_stride + half), _mm256_castsi256_si128(t[i]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (i + 8) * out_stride + half),
                       _mm256_extracti128_si256(t[i], 1));
    }
  }
}

#include "twinkle/kernels/cpu/gemm_kernels.inc"

}  // namespace

const KernelTable& kernels_avx2() { return kTable; }
#endif
}  // namespace twinkle::ops::cpu
