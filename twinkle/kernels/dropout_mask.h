// Which elements dropout keeps. The decision for (sequence key, position, column) is one word of one Philox
// block: key mix_key(seed, stream); counter high the sequence's key, counter low position << 32 | block. A
// run of 64 columns takes 16 blocks, block 16 * (column / 64) + column % 16 and word (column / 16) % 4, so
// that 16 vector lanes hold 16 blocks and each word fills 16 neighbouring columns. Values only.
#pragma once

#include <cmath>
#include <cstdint>

#include "twinkle/core/rng.h"

namespace twinkle::ops {

class DropoutMask {
 public:
  DropoutMask(double p, uint64_t seed, uint64_t stream)
      : key_(mix_key(seed, stream)),
        threshold_(static_cast<uint32_t>(std::ceil(p * 0x1p24))),
        scale_(p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f) {}

  /// Kept when the word's uniform in [0, 1) is at least p.
  bool keep(uint64_t sequence_key, int32_t position, int64_t column) const {
    const uint64_t block = static_cast<uint64_t>(16 * (column / 64) + column % 16);
    const uint64_t low = (static_cast<uint64_t>(static_cast<uint32_t>(position)) << 32) | block;
    return (philox4x32(key_, low, sequence_key)[static_cast<size_t>(column / 16 % 4)] >> 8) >= threshold_;
  }

  uint64_t key() const { return key_; }
  /// word >> 8 at least this is kept.
  uint32_t threshold() const { return threshold_; }
  /// 1 / (1 - p).
  float scale() const { return scale_; }

 private:
  uint64_t key_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace twinkle::ops
