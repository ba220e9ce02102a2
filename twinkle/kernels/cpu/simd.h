// Sixteen floats at a time, on AVX-512 or as two halves on AVX2. A kernel written with F16 gives the same
// bits on both: every operation is IEEE, and a sum over lanes is one fixed tree. Include only from a file
// that is compiled for its instruction set (cpu/*_avx2.cpp, cpu/*_avx512.cpp): all is in an unnamed namespace
// so that no copy compiled for one set is linked into code for another.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace twinkle::ops::cpu {
namespace {
namespace simd {

inline constexpr int64_t kLanes = 16;

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

#if defined(__AVX512F__)

inline constexpr int kIsaUnits = 4;  // vectors of a register tile of 6 rows: 24 of 32 registers

struct F16 {
  __m512 v;
};
struct Mask16 {
  __mmask16 bits;
};
struct U16 {
  __m512i v;
};

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
/// The first n lanes true; n in 0..16.
inline Mask16 first_n(int64_t n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }
inline F16 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_n(n).bits, p)}; }
inline void store_n(float* p, F16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_n(n).bits, a.v); }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
/// a * b + c
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// c - a * b
inline F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
/// The second when either is NaN.
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// yes where the mask is set, else no.
inline F16 select(Mask16 m, F16 yes, F16 no) { return {_mm512_mask_blend_ps(m.bits, no.v, yes.v)}; }
/// Lanes lo <= i < hi; 0 <= lo, hi <= 16.
inline Mask16 lanes_between(int64_t lo, int64_t hi) {
  return {static_cast<__mmask16>(first_n(hi).bits & static_cast<__mmask16>(~first_n(lo).bits))};
}
/// a * 2^n for whole n in [-252, 252], rounded once.
inline F16 scale_by_power(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline __m256 low_half(F16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(F16 a) { return _mm512_extractf32x8_ps(a.v, 1); }

inline U16 set1(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline U16 load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline U16 operator+(U16 a, U16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U16 operator^(U16 a, U16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline U16 shift_right_8(U16 a) { return {_mm512_srli_epi32(a.v, 8)}; }
/// Lanes where a < b; both below 2^31.
inline Mask16 less(U16 a, U16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
/// The 64-bit products a * b, split.
inline void multiply_wide(U16 a, U16 b, U16& high, U16& low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), b.v);
  high.v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  low.v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

/// Sums of squares in fp64, lane by lane: acc[i] += x[i]^2.
struct D16 {
  __m512d a, b;
};
inline D16 zero_d() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline D16 add_squares(D16 acc, F16 x) {
  const __m512d lo = _mm512_cvtps_pd(low_half(x)), hi = _mm512_cvtps_pd(high_half(x));
  return {_mm512_fmadd_pd(lo, lo, acc.a), _mm512_fmadd_pd(hi, hi, acc.b)};
}
inline double sum(D16 x) {
  const __m512d s8 = _mm512_add_pd(x.a, x.b);
  const __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

/// Transposes 16 vectors of 16.
inline void transpose(F16 r[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88),
                 b = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xDD);
    r[i].v = _mm512_shuffle_f32x4(a, c, 0x88);
    r[i + 8].v = _mm512_shuffle_f32x4(a, c, 0xDD);
    r[i + 4].v = _mm512_shuffle_f32x4(b, d, 0x88);
    r[i + 12].v = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

#else

inline constexpr int kIsaUnits = 1;  // 12 of 16 registers

struct F16 {
  __m256 a, b;
};
struct Mask16 {
  __m256 a, b;
};
struct U16 {
  __m256i a, b;
};

inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline __m256i half_mask(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
/// The first n lanes true; n in 0..16.
inline Mask16 first_n(int64_t n) {
  return {_mm256_castsi256_ps(half_mask(n)), _mm256_castsi256_ps(half_mask(n - 8))};
}
inline F16 load_n(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, half_mask(n)), _mm256_maskload_ps(p + 8, half_mask(n - 8))};
}
inline void store_n(float* p, F16 x, int64_t n) {
  _mm256_maskstore_ps(p, half_mask(n), x.a), _mm256_maskstore_ps(p + 8, half_mask(n - 8), x.b);
}
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
/// x * y + z
inline F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/// z - x * y
inline F16 fnma(F16 x, F16 y, F16 z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
/// The second when either is NaN.
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 sqrt(F16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
inline F16 round(F16 x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
/// yes where the mask is set, else no.
inline F16 select(Mask16 m, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
/// Lanes lo <= i < hi; 0 <= lo, hi <= 16.
inline Mask16 lanes_between(int64_t lo, int64_t hi) {
  const Mask16 below = first_n(lo), upto = first_n(hi);
  return {_mm256_andnot_ps(below.a, upto.a), _mm256_andnot_ps(below.b, upto.b)};
}
inline __m256 scale_half(__m256 x, __m256 n) {
  // In two steps, since 2^n itself may not be a normal number; the first is exact.
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
  const __m256 p = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 q = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, p), q);
}
/// x * 2^n for whole n in [-252, 252], rounded once.
inline F16 scale_by_power(F16 x, F16 n) { return {scale_half(x.a, n.a), scale_half(x.b, n.b)}; }

inline __m256 low_half(F16 x) { return x.a; }
inline __m256 high_half(F16 x) { return x.b; }

inline U16 set1(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
inline U16 load(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline U16 operator+(U16 x, U16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline U16 operator^(U16 x, U16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline U16 shift_right_8(U16 x) { return {_mm256_srli_epi32(x.a, 8), _mm256_srli_epi32(x.b, 8)}; }
/// Lanes where x < y; both below 2^31.
inline Mask16 less(U16 x, U16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
inline void multiply_wide_half(__m256i x, __m256i y, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(x, y), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
/// The 64-bit products x * y, split.
inline void multiply_wide(U16 x, U16 y, U16& high, U16& low) {
  multiply_wide_half(x.a, y.a, high.a, low.a);
  multiply_wide_half(x.b, y.b, high.b, low.b);
}

/// Sums of squares in fp64, lane by lane: acc[i] += x[i]^2.
struct D16 {
  __m256d a, b, c, d;
};
inline D16 zero_d() {
  return {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
}
inline D16 add_squares(D16 acc, F16 x) {
  const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)),
                b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1));
  const __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)),
                d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1));
  return {_mm256_fmadd_pd(a, a, acc.a), _mm256_fmadd_pd(b, b, acc.b), _mm256_fmadd_pd(c, c, acc.c),
          _mm256_fmadd_pd(d, d, acc.d)};
}
inline double sum(D16 x) {
  const __m256d s4 = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

inline void transpose_8x8(__m256 r[8]) {
  const __m256 t0 = _mm256_unpacklo_ps(r[0], r[1]), t1 = _mm256_unpackhi_ps(r[0], r[1]);
  const __m256 t2 = _mm256_unpacklo_ps(r[2], r[3]), t3 = _mm256_unpackhi_ps(r[2], r[3]);
  const __m256 t4 = _mm256_unpacklo_ps(r[4], r[5]), t5 = _mm256_unpackhi_ps(r[4], r[5]);
  const __m256 t6 = _mm256_unpacklo_ps(r[6], r[7]), t7 = _mm256_unpackhi_ps(r[6], r[7]);
  const __m256 u0 = _mm256_shuffle_ps(t0, t2, 0x44), u1 = _mm256_shuffle_ps(t0, t2, 0xEE);
  const __m256 u2 = _mm256_shuffle_ps(t1, t3, 0x44), u3 = _mm256_shuffle_ps(t1, t3, 0xEE);
  const __m256 u4 = _mm256_shuffle_ps(t4, t6, 0x44), u5 = _mm256_shuffle_ps(t4, t6, 0xEE);
  const __m256 u6 = _mm256_shuffle_ps(t5, t7, 0x44), u7 = _mm256_shuffle_ps(t5, t7, 0xEE);
  r[0] = _mm256_permute2f128_ps(u0, u4, 0x20), r[4] = _mm256_permute2f128_ps(u0, u4, 0x31);
  r[1] = _mm256_permute2f128_ps(u1, u5, 0x20), r[5] = _mm256_permute2f128_ps(u1, u5, 0x31);
  r[2] = _mm256_permute2f128_ps(u2, u6, 0x20), r[6] = _mm256_permute2f128_ps(u2, u6, 0x31);
  r[3] = _mm256_permute2f128_ps(u3, u7, 0x20), r[7] = _mm256_permute2f128_ps(u3, u7, 0x31);
}
/// Transposes 16 vectors of 16.
inline void transpose(F16 r[16]) {
  __m256 quarter[4][8];
  for (int i = 0; i < 8; ++i) {
    quarter[0][i] = r[i].a, quarter[1][i] = r[i].b;
    quarter[2][i] = r[i + 8].a, quarter[3][i] = r[i + 8].b;
  }
  for (auto& q : quarter) transpose_8x8(q);
  for (int i = 0; i < 8; ++i) {
    r[i] = {quarter[0][i], quarter[2][i]};
    r[i + 8] = {quarter[1][i], quarter[3][i]};
  }
}

#endif

/// Sum of all lanes: i with i+8, then i+4, i+2, i+1.
inline float sum(F16 x) {
  const __m256 s8 = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

/// Sums of eight vectors, each by the tree of sum().
inline __m256 sums(const F16 x[8]) {
  __m256 s8[8], s4[4], s2[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) s8[i] = _mm256_add_ps(low_half(x[i]), high_half(x[i]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s4[i] = _mm256_add_ps(_mm256_permute2f128_ps(s8[i], s8[i + 4], 0x20),
                          _mm256_permute2f128_ps(s8[i], s8[i + 4], 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    s2[i] = _mm256_add_ps(_mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0x44),
                          _mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0xEE));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(s2[0], s2[1], 0x88), _mm256_shuffle_ps(s2[0], s2[1], 0xDD));
}

/// The largest lanes of eight vectors.
inline __m256 max_lanes(const F16 x[8]) {
  __m256 s8[8], s4[4], s2[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) s8[i] = _mm256_max_ps(low_half(x[i]), high_half(x[i]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s4[i] = _mm256_max_ps(_mm256_permute2f128_ps(s8[i], s8[i + 4], 0x20),
                          _mm256_permute2f128_ps(s8[i], s8[i + 4], 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    s2[i] = _mm256_max_ps(_mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0x44),
                          _mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0xEE));
  }
  return _mm256_max_ps(_mm256_shuffle_ps(s2[0], s2[1], 0x88), _mm256_shuffle_ps(s2[0], s2[1], 0xDD));
}

/// exp for x of at most 90.
inline F16 exp_below(F16 x) {
  x = max(set1(-105.0f), x);
  const F16 n = round(x * set1(0x1.715476p+0f));
  F16 r = fnma(n, set1(0x1.62e4p-1f), x);
  r = fnma(n, set1(0x1.7f7d1cp-20f), r);
  F16 p = set1(0x1.6a2434p-10f);
  p = fma(p, r, set1(0x1.1239e2p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power(p, n);
}

/// e^x within 1 ulp: 2^n times a minimax polynomial on [-ln2/2, ln2/2]. 0 below -104, infinity above 89; NaN
/// stays.
inline F16 exp(F16 x) { return exp_below(min(set1(90.0f), x)); }

}  // namespace simd
}  // namespace
}  // namespace twinkle::ops::cpu
