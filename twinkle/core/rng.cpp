#include "twinkle/core/rng.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "twinkle/core/normal.h"
#include "twinkle/core/parallel.h"

namespace twinkle {

uint64_t mix_key(uint64_t key, uint64_t word) {
  uint64_t z = key + 0x9E3779B97F4A7C15ull * (word + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint64_t hash_name(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

uint32_t CounterRng::next_u32() {
  if (left_ == 0) {
    block_ = philox4x32(key_, counter_++, stream_);
    left_ = 4;
  }
  return block_[static_cast<size_t>(4 - left_--)];
}

uint64_t CounterRng::next_u64() {
  const uint64_t high = next_u32();
  return (high << 32) | next_u32();
}

double CounterRng::next_double() {
  const uint32_t high = next_u32();
  return uniform_double(high, next_u32());
}

uint64_t CounterRng::next_below(uint64_t bound) {
  const uint64_t limit = bound * (UINT64_MAX / bound);
  uint64_t x = next_u64();
  while (x >= limit) x = next_u64();
  return x % bound;
}

std::vector<int64_t> permutation(int64_t count, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  CounterRng rng(seed, stream);
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[rng.next_below(static_cast<uint64_t>(i) + 1)]);
  }
  return order;
}

void fill_normal_range(float* out, int64_t begin, int64_t end, uint64_t key, float std) {
  for (int64_t block = begin / 4; 4 * block < end; ++block) {
    const auto w = philox4x32(key, static_cast<uint64_t>(block), 0);
    for (int pair = 0; pair < 2; ++pair) {
      const size_t p = static_cast<size_t>(2 * pair);
      const double u = (static_cast<double>(w[p]) + 1.0) * 0x1p-32;  // (0, 1]
      const double r = std::sqrt(-2.0 * std::log(u));
      const double angle = 2.0 * std::numbers::pi * (static_cast<double>(w[p + 1]) * 0x1p-32);
      const int64_t i = 4 * block + 2 * pair;
      if (i >= begin && i < end) out[i - begin] = static_cast<float>(r * std::cos(angle)) * std;
      if (i + 1 >= begin && i + 1 < end) out[i + 1 - begin] = static_cast<float>(r * std::sin(angle)) * std;
    }
  }
}

void fill_normal(float* out, int64_t count, uint64_t key, float std) {
  parallel_for((count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    fill_normal_range(out + 4 * begin, 4 * begin, std::min(count, 4 * end), key, std);
  });
}

void fill_uniform(float* out, int64_t count, uint64_t key, float low, float high) {
  parallel_for((count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto w = philox4x32(key, static_cast<uint64_t>(block), 0);
      for (int64_t j = 0; j < 4 && 4 * block + j < count; ++j) {
        out[4 * block + j] = low + (high - low) * uniform_float(w[static_cast<size_t>(j)]);
      }
    }
  });
}

}  // namespace twinkle
