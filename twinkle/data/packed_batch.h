// The batch every pass runs on: sequences laid end to end, no padding. Plain vectors; immutable once made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/data/types.h"

namespace twinkle {

/// The first `length` rows of a sequence are those of sequence `of`, which stands before it.
struct CommonPrefix {
  int32_t of = -1;
  int32_t length = 0;
};

/// T tokens of B sequences. Rows [cu_seqlens[b], cu_seqlens[b+1]) belong to sequence b; positions restart at
/// 0.
struct PackedBatch {
  std::vector<int32_t> tokens;         // [T]
  std::vector<int32_t> positions;      // [T]
  std::vector<int32_t> cu_seqlens;     // [B+1], starts at 0
  std::vector<int32_t> targets;        // [T], kIgnoreIndex where nothing is scored (labels, already shifted)
                                       // and for features with label_positions, which a row can not hold
  std::vector<float> weights;          // [T], 0 where nothing is scored
  std::vector<int32_t> adapter;        // [B], slot of each sequence's adapter, -1: base model
  std::vector<int64_t> order;          // [B], place of each sequence in reductions: gradients are summed over
                                       // sequences by ascending order, wherever they stand in the batch
  std::vector<uint64_t> sequence_key;  // [B], names each sequence's random stream (dropout)
  std::vector<CommonPrefix> prefix;    // [B], rows that need not be computed again; or empty

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_sequences() const {
    return cu_seqlens.empty() ? 0 : static_cast<int64_t>(cu_seqlens.size()) - 1;
  }
  /// Indices of the sequences by ascending `order`.
  std::vector<int64_t> reduction_order() const;
  /// Rows whose target is scored, ascending.
  std::vector<int32_t> scored_rows() const;
};

/// Lays features end to end in the given order (order[b] = first_order + b). Empty features and features
/// whose labels or weights differ in length are invalid_argument naming the index.
PackedBatch pack(std::span<const InputFeature> features, int64_t first_order = 0);

/// Splits features into consecutive groups of at most `max_tokens` tokens (a longer feature stands alone);
/// returns the end index of each group.
std::vector<int64_t> split_by_tokens(std::span<const InputFeature> features, int64_t max_tokens);

}  // namespace twinkle
