// The rows that a pass computes when sequences share their beginning (PackedBatch::prefix). Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "twinkle/data/packed_batch.h"
#include "twinkle/nn/pass.h"

namespace twinkle {

struct SharedRows {
  std::vector<int64_t> row_of;                   // [T] computed row of each row of the batch
  std::vector<int64_t> first;                    // [C] the first row of the batch that each computed row is
  std::vector<ops::RowRange> own;                // [B] computed rows that a sequence adds to those before it
  std::vector<std::vector<int64_t>> block_rows;  // [B] see AttentionSequence; empty: its keys lie in order
  std::vector<nn::Pass::KeyCopy> key_copies;
  int64_t copied_keys = 0;

  int64_t rows() const { return static_cast<int64_t>(first.size()); }
};

/// For the first `num_sequences` sequences of the batch.
SharedRows share_rows(const PackedBatch& batch, int64_t num_sequences);

}  // namespace twinkle
