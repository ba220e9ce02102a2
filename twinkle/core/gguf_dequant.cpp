// Block formats of ggml to fp32. Each block is decoded by plain loops that the compiler vectorises; an AVX2
// build of the same loops is chosen at run time. No multiply-add is fused, so every machine gives the same
// bits, those of ggml and of the `gguf` package. Pure functions, any thread.
#include <bit>
#include <cstring>

#include "twinkle/core/error.h"
#include "twinkle/core/gguf.h"

namespace twinkle {
namespace {

// The optimiser must see each decoder inside the AVX2 and the plain wrapper alike.
#define TW_INLINE inline __attribute__((always_inline))

TW_INLINE uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

// Branch-free, so that a row of halves vectorises; does not depend on the processor's denormal mode.
TW_INLINE float half_to_float(uint32_t half) {
  const uint32_t shifted = (half & 0x7FFFu) << 13;
  const uint32_t exponent = shifted & 0x0F800000u;
  const uint32_t rebias = exponent == 0x0F800000u ? 224u << 23 : 112u << 23;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(shifted + (113u << 23)) - 0x1p-14f);
  const uint32_t magnitude = exponent == 0 ? subnormal : shifted + rebias;
  return std::bit_cast<float>(magnitude | ((half & 0x8000u) << 16));
}

TW_INLINE float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

struct F16 {
  static constexpr int kElements = 16, kBytes = 32;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    uint16_t h[kElements];
    std::memcpy(h, p, kBytes);
    for (int i = 0; i < kElements; ++i) y[i] = half_to_float(h[i]);
  }
};

struct BF16 {
  static constexpr int kElements = 16, kBytes = 32;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    uint16_t h[kElements];
    std::memcpy(h, p, kBytes);
    for (int i = 0; i < kElements; ++i) y[i] = std::bit_cast<float>(static_cast<uint32_t>(h[i]) << 16);
  }
};

struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p);
    const uint8_t* q = p + 2;
    for (int i = 0; i < 16; ++i) y[i] = d * static_cast<float>((q[i] & 15) - 8);
    for (int i = 0; i < 16; ++i) y[i + 16] = d * static_cast<float>((q[i] >> 4) - 8);
  }
};

struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p), m = load_half(p + 2);
    const uint8_t* q = p + 4;
    for (int i = 0; i < 16; ++i) y[i] = d * static_cast<float>(q[i] & 15) + m;
    for (int i = 0; i < 16; ++i) y[i + 16] = d * static_cast<float>(q[i] >> 4) + m;
  }
};

TW_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p);
    const uint32_t high = load_u32(p + 2);
    const uint8_t* q = p + 6;
    for (int i = 0; i < 16; ++i) {
      y[i] = d * static_cast<float>(static_cast<int>((q[i] & 15u) | (((high >> i) & 1u) << 4)) - 16);
    }
    for (int i = 0; i < 16; ++i) {
      y[i + 16] =
          d * static_cast<float>(static_cast<int>((q[i] >> 4) | (((high >> (i + 16)) & 1u) << 4)) - 16);
    }
  }
};

struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p), m = load_half(p + 2);
    const uint32_t high = load_u32(p + 4);
    const uint8_t* q = p + 8;
    for (int i = 0; i < 16; ++i) {
      y[i] = d * static_cast<float>(static_cast<int>((q[i] & 15u) | (((high >> i) & 1u) << 4))) + m;
    }
    for (int i = 0; i < 16; ++i) {
      y[i + 16] =
          d * static_cast<float>(static_cast<int>((q[i] >> 4) | (((high >> (i + 16)) & 1u) << 4))) + m;
    }
  }
};

struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p);
    for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
  }
};

// Super-blocks of 256: [scales 16][quants 64][d][dmin]; two bits a value, 4-bit scale and minimum per 16.
struct Q2_K {
  static constexpr int kElements = 256, kBytes = 84;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p + 80), dmin = load_half(p + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(p[group] & 15),
                  minimum = dmin * static_cast<float>(p[group] >> 4);
      const uint8_t* q = p + 16 + 32 * (group / 8) + 16 * (group & 1);
      const int shift = 2 * ((group / 2) & 3);
      for (int i = 0; i < 16; ++i)
        y[16 * group + i] = scale * static_cast<float>((q[i] >> shift) & 3) - minimum;
    }
  }
};

// [high bits 32][low bits 64][scales 12][d]; three bits a value, 6-bit signed scale per 16.
struct Q3_K {
  static constexpr int kElements = 256, kBytes = 110;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const uint8_t* packed = p + 96;
    const float d = load_half(p + 108);
    for (int group = 0; group < 16; ++group) {
      const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
      const int high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
      const float scale = d * static_cast<float>((low | (high << 4)) - 32);
      const uint8_t* q = p + 32 + 32 * (group / 8) + 16 * (group & 1);
      const uint8_t* mask = p + 16 * (group & 1);
      const int bit = group / 2, shift = 2 * (bit & 3);
      for (int i = 0; i < 16; ++i) {
        const int value = ((q[i] >> shift) & 3) + 4 * ((mask[i] >> bit) & 1) - 4;
        y[16 * group + i] = scale * static_cast<float>(value);
      }
    }
  }
};

// The twelve bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums.
TW_INLINE void unpack_scales(const uint8_t* s, int group, int* scale, int* minimum) {
  if (group < 4) {
    *scale = s[group] & 63;
    *minimum = s[group + 4] & 63;
  } else {
    *scale = (s[group + 4] & 15) | ((s[group - 4] >> 6) << 4);
    *minimum = (s[group + 4] >> 4) | ((s[group] >> 6) << 4);
  }
}

struct Q4_K {
  static constexpr int kElements = 256, kBytes = 144;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p), dmin = load_half(p + 2);
    for (int group = 0; group < 8; ++group) {
      int scale, minimum;
      unpack_scales(p + 4, group, &scale, &minimum);
      const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
      const uint8_t* q = p + 16 + 32 * (group / 2);
      const int shift = 4 * (group & 1);
      for (int i = 0; i < 32; ++i) y[32 * group + i] = s * static_cast<float>((q[i] >> shift) & 15) - m;
    }
  }
};

struct Q5_K {
  static constexpr int kElements = 256, kBytes = 176;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p), dmin = load_half(p + 2);
    const uint8_t* high = p + 16;
    for (int group = 0; group < 8; ++group) {
      int scale, minimum;
      unpack_scales(p + 4, group, &scale, &minimum);
      const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
      const uint8_t* q = p + 48 + 32 * (group / 2);
      const int shift = 4 * (group & 1);
      for (int i = 0; i < 32; ++i) {
        const int value = ((q[i] >> shift) & 15) | (((high[i] >> group) & 1) << 4);
        y[32 * group + i] = s * static_cast<float>(value) - m;
      }
    }
  }
};

// [low nibbles 128][high pairs 64][scales 16][d]; six bits a value, 8-bit signed scale per 16.
struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  static TW_INLINE void decode(const uint8_t* p, float* y) {
    const float d = load_half(p + 208);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(p[192 + group]));
      const int half = group / 8, quarter = (group / 2) & 3, odd = group & 1;
      const uint8_t* low = p + 64 * half + 32 * (quarter & 1) + 16 * odd;
      const uint8_t* high = p + 128 + 32 * half + 16 * odd;
      const int low_shift = 4 * (quarter / 2), high_shift = 2 * quarter;
      for (int i = 0; i < 16; ++i) {
        const int value = ((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
        y[16 * group + i] = scale * static_cast<float>(value - 32);
      }
    }
  }
};

template <class Format>
TW_INLINE void decode_blocks(const uint8_t* p, int64_t blocks, float* y) {
  for (int64_t i = 0; i < blocks; ++i) Format::decode(p + i * Format::kBytes, y + i * Format::kElements);
}

template <class Format>
void decode_plain(const uint8_t* p, int64_t blocks, float* y) {
  decode_blocks<Format>(p, blocks, y);
}

#if defined(__x86_64__)
template <class Format>
__attribute__((target("avx2"))) void decode_avx2(const uint8_t* p, int64_t blocks, float* y) {
  decode_blocks<Format>(p, blocks, y);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

template <class Format>
void decode_all(const std::byte* data, int64_t count, float* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(data);
  const int64_t blocks = count / Format::kElements;
#if defined(__x86_64__)
  if (has_avx2()) {
    decode_avx2<Format>(p, blocks, out);
    return;
  }
#endif
  decode_plain<Format>(p, blocks, out);
}

}  // namespace

void dequantize(GgmlType type, const std::byte* data, int64_t count, float* out) {
  TW_CHECK(count >= 0 && count % ggml_block_size(type) == 0, "a part of a block was asked for");
  switch (type) {
    case GgmlType::kF32:
      if (count > 0) std::memcpy(out, data, static_cast<size_t>(count) * 4);
      return;
    case GgmlType::kF16:
    case GgmlType::kBF16: {
      const int64_t whole = count / F16::kElements * F16::kElements;
      if (type == GgmlType::kF16) {
        decode_all<F16>(data, whole, out);
      } else {
        decode_all<BF16>(data, whole, out);
      }
      const uint8_t* p = reinterpret_cast<const uint8_t*>(data);
      for (int64_t i = whole; i < count; ++i) {
        const uint32_t bits = load_u16(p + 2 * i);
        out[i] = type == GgmlType::kF16 ? half_to_float(bits) : std::bit_cast<float>(bits << 16);
      }
      return;
    }
    case GgmlType::kQ4_0:
      return decode_all<Q4_0>(data, count, out);
    case GgmlType::kQ4_1:
      return decode_all<Q4_1>(data, count, out);
    case GgmlType::kQ5_0:
      return decode_all<Q5_0>(data, count, out);
    case GgmlType::kQ5_1:
      return decode_all<Q5_1>(data, count, out);
    case GgmlType::kQ8_0:
      return decode_all<Q8_0>(data, count, out);
    case GgmlType::kQ2_K:
      return decode_all<Q2_K>(data, count, out);
    case GgmlType::kQ3_K:
      return decode_all<Q3_K>(data, count, out);
    case GgmlType::kQ4_K:
      return decode_all<Q4_K>(data, count, out);
    case GgmlType::kQ5_K:
      return decode_all<Q5_K>(data, count, out);
    case GgmlType::kQ6_K:
      return decode_all<Q6_K>(data, count, out);
  }
  TW_CHECK(false, "unknown ggml type");
}

}  // namespace twinkle
