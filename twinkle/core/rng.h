// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3"). A number depends only on (key, counter), never on how many were drawn before or by whom.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace twinkle {

/// Four 32-bit words for a 64-bit key and a 128-bit counter.
inline std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n1 = static_cast<uint32_t>(p1);
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1, n3 = static_cast<uint32_t>(p0);
    c0 = n0, c1 = n1, c2 = n2, c3 = n3;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Mixes a word into a key (SplitMix64's finaliser), to derive independent streams: mix(seed,
/// hash("lora_A")).
uint64_t mix_key(uint64_t key, uint64_t word);
/// FNV-1a, to name streams by text.
uint64_t hash_name(std::string_view name);

/// Uniform in [0, 1) with 24 bits.
inline float uniform_float(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
/// Uniform in [0, 1) with 53 bits.
inline double uniform_double(uint32_t high, uint32_t low) {
  return static_cast<double>(((static_cast<uint64_t>(high) << 32) | low) >> 11) * 0x1p-53;
}

/// A sequence of numbers from (key, stream); for host-side use such as shuffling.
class CounterRng {
 public:
  explicit CounterRng(uint64_t key, uint64_t stream = 0) : key_(key), stream_(stream) {}
  uint32_t next_u32();
  uint64_t next_u64();
  double next_double();
  /// Uniform in [0, bound), without modulo bias; bound >= 1.
  uint64_t next_below(uint64_t bound);

 private:
  uint64_t key_, stream_, counter_ = 0;
  std::array<uint32_t, 4> block_{};
  int left_ = 0;
};

/// A permutation of 0..count-1 (Fisher-Yates) that depends on (seed, stream) only.
std::vector<int64_t> permutation(int64_t count, uint64_t seed, uint64_t stream);

/// Fills out[i] with N(0, std) by Box-Muller, four values from each counter: element i from counter i / 4.
void fill_normal(float* out, int64_t count, uint64_t key, float std);
/// Fills out[i] with U(low, high), likewise.
void fill_uniform(float* out, int64_t count, uint64_t key, float low, float high);

}  // namespace twinkle
