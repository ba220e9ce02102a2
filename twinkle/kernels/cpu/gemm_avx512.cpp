// The kernel table for AVX-512 (F, BW, DQ, VL). Compiled with those flags, so nothing of the standard library
// is used.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "twinkle/kernels/cpu/gemm_kernels.h"

namespace twinkle::ops::cpu {
#if defined(__x86_64__)
namespace {

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kTileRows = 12;
constexpr int kTilePanels = 2;
#define TWINKLE_TILE_ROWS 12

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec set1(const float* p) { return _mm512_broadcastss_ps(_mm_load_ss(p)); }
inline Vec value(float x) { return _mm512_set1_ps(x); }
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec round_nearest(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline bool any_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }

// The first `cols` (under 16) floats.
inline void copy_part(float* to, const float* from, int64_t cols) {
  const __mmask16 mask = static_cast<__mmask16>((1u << cols) - 1u);
  _mm512_mask_storeu_ps(to, mask, _mm512_maskz_loadu_ps(mask, from));
}

// p * 2^n for n < 128; 0 where x is so low that the result would be subnormal.
inline Vec scale_by_power(Vec p, Vec n, Vec x) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654022216797f), _CMP_NLT_UQ), p,
                                n);
}

inline Vec load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#include "twinkle/kernels/cpu/narrow.inc"

// out[i][j] = in[j][i], 16 x 16: within 128-bit lanes by fours, then the lanes themselves.
template <typename Type, typename Element>
void transpose_16x16(Type type, const Element* in, int64_t in_stride, float* out) {
  Vec r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = load_as(type, in + i * in_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const Vec a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
    const Vec c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88),
              b = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
    const Vec c = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd),
              d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    store(out + i * 16, _mm512_shuffle_f32x4(a, b, 0x88));
    store(out + (i + 8) * 16, _mm512_shuffle_f32x4(a, b, 0xdd));
    store(out + (i + 4) * 16, _mm512_shuffle_f32x4(c, d, 0x88));
    store(out + (i + 12) * 16, _mm512_shuffle_f32x4(c, d, 0xdd));
  }
}

// out[i][j] = in[j][i], 16 x 16 of 16-bit elements.
void transpose_bits(const uint16_t* in, int64_t in_stride, uint16_t* out, int64_t out_stride) {
  __m512i r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i* row = reinterpret_cast<const __m256i*>(in + 2 * i * in_stride);
    const __m256i* next = reinterpret_cast<const __m256i*>(in + (2 * i + 1) * in_stride);
    r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(row)), _mm256_loadu_si256(next), 1);
  }
  // Rows 2i and 2i + 1 into units of 64 bits, {[2i][2q], [2i + 1][2q], [2i][2q + 1], [2i + 1][2q + 1]}; then
  // the units are transposed, 8 x 8.
  const __m512i halves = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                          22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i even_first = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm512_permutexvar_epi16(halves, r[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 2], 0x88),
                  b = _mm512_shuffle_i32x4(t[i + 4], t[i + 6], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 2], 0xdd),
                  d = _mm512_shuffle_i32x4(t[i + 4], t[i + 6], 0xdd);
    r[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
    r[i + 2] = _mm512_shuffle_i32x4(c, d, 0x88);
    r[i + 6] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i rows = _mm512_permutexvar_epi32(even_first, r[i]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i * out_stride), _mm512_castsi512_si256(rows));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (2 * i + 1) * out_stride),
                        _mm512_extracti64x4_epi64(rows, 1));
  }
}

#include "twinkle/kernels/cpu/gemm_kernels.inc"

}  // namespace

const KernelTable& kernels_avx512() { return kTable; }
#endif
}  // namespace twinkle::ops::cpu
