#include "twinkle/data/packed_batch.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/data/shared_prefix.h"

namespace twinkle {

std::vector<int64_t> PackedBatch::reduction_order() const {
  std::vector<int64_t> index(static_cast<size_t>(num_sequences()));
  std::iota(index.begin(), index.end(), int64_t{0});
  std::stable_sort(index.begin(), index.end(), [&](int64_t a, int64_t b) {
    return order[static_cast<size_t>(a)] < order[static_cast<size_t>(b)];
  });
  return index;
}

std::vector<int32_t> PackedBatch::scored_rows() const {
  std::vector<int32_t> rows;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] != kIgnoreIndex) rows.push_back(static_cast<int32_t>(t));
  }
  return rows;
}

PackedBatch pack(std::span<const InputFeature> features, int64_t first_order) {
  PackedBatch batch;
  size_t total = 0;
  for (const auto& f : features) total += f.input_ids.size();
  if (total > static_cast<size_t>(INT32_MAX))
    throw invalid_argument("[batch] more than 2^31 tokens in one batch");
  batch.cu_seqlens.push_back(0);
  for (size_t i = 0; i < features.size(); ++i) {
    const auto& f = features[i];
    const std::string place = "[batch] feature " + std::to_string(i) + ": ";
    if (f.input_ids.empty()) throw invalid_argument(place + "has no tokens");
    const bool one_each = f.label_positions.empty();
    if (one_each && f.labels.size() != f.input_ids.size()) {
      throw invalid_argument(place + "has " + std::to_string(f.labels.size()) + " labels for " +
                             std::to_string(f.input_ids.size()) + " tokens");
    }
    if (!f.weights.empty() && f.weights.size() != f.labels.size()) {
      throw invalid_argument(place + "has " + std::to_string(f.weights.size()) + " weights for " +
                             std::to_string(f.labels.size()) + " labels");
    }
    for (size_t t = 0; t < f.input_ids.size(); ++t) {
      batch.tokens.push_back(f.input_ids[t]);
      batch.positions.push_back(static_cast<int32_t>(t));
      const int32_t target = one_each ? f.labels[t] : kIgnoreIndex;
      batch.targets.push_back(target);
      batch.weights.push_back(target == kIgnoreIndex ? 0.0f : f.weights.empty() ? 1.0f : f.weights[t]);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.adapter.push_back(-1);
    batch.order.push_back(first_order + static_cast<int64_t>(i));
    batch.sequence_key.push_back(static_cast<uint64_t>(first_order) + i);
  }
  return batch;
}

std::vector<int64_t> split_by_tokens(std::span<const InputFeature> features, int64_t max_tokens) {
  return split_runs(feature_runs(features, PrefixSharing::kOff, false, max_tokens), max_tokens);
}

}  // namespace twinkle
